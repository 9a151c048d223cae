"""NumPy .npz files: x (N, T) or (N, T, D) and y, optionally `lengths`, and optionally x_train, y_train, x_test ..."""

from __future__ import annotations

import errno
import math
import tokenize
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.compression import check_size

SUFFIXES = (".npz",)
CURES = dict.fromkeys("biufUSM", "") | {  # what to do for arrays of a kind; "" if they are read
    "c": "save the real and the imaginary part as two features",
    "m": "save a duration as a number: array / np.timedelta64(1, 's')",
}


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Read the arrays of a file as columns; a name such as x_train gives the rows a split."""
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: damaged, or not an .npz file; write it again")
    try:
        _check_sizes(path, options)
    except OSError as error:
        if error.errno != errno.EINVAL:  # zipfile seeks to the position that a damaged entry names
            raise
        raise UserError(f"{path}: damaged; write it again") from None
    except RuntimeError:  # raised by zipfile if a password is needed
        raise UserError(f"{path}: is encrypted, or damaged; write it again without a password") from None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: damaged ({reason}); write it again") from None
    arrays |= {name: np.char.decode(array, "utf-8") for name, array in arrays.items() if array.dtype.kind == "S"}
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        column, _, part = name.rpartition("_")
        has_split = part in ("train", "valid", "val", "test")
        parts.setdefault(part if has_split else "", {})[column if has_split else name] = array
    if not parts:
        raise UserError(f"{path}: holds no arrays")
    frames = [_make_frame(path, arrays, part) for part, arrays in parts.items()]
    return pl.concat(frames, how="diagonal_relaxed").lazy()


def _check_sizes(path: Path, options: Reading) -> None:
    """Raise an error if arrays have an unsupported type, or a size above the limit or above that of their data."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_size(path, sum(member.file_size for member in members), options.unpacked_gib)
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise UserError(f"{path}: holds {name!r}, which is no array; leave it out")
            with archive.open(member) as file:
                try:
                    version = npy.read_magic(file)
                    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                    shape, _, dtype = read(file)
                except (ValueError, TypeError, SyntaxError, tokenize.TokenError) as error:
                    reason = str(error).splitlines()[0]
                    raise UserError(f"{path}: {member.filename} is damaged ({reason}); write it again") from None
            _check_type(path, name, dtype, len(shape))
            if not 1 <= len(shape) <= 3:
                raise UserError(
                    f"{path}: {name} has shape {shape}; give arrays of (rows), (rows, steps) or (rows, steps, features)"
                )
            if math.prod(shape) * dtype.itemsize > member.file_size or min(shape) < 0:
                raise UserError(
                    f"{path}: {member.filename} claims the shape {shape}, more than it holds; write it again"
                )


def _check_type(path: Path, name: str, dtype: np.dtype[Any], dimensions: int) -> None:
    """Raise an error for arrays that are not numbers, texts or dates of a unit that polars knows."""
    if dtype.hasobject:
        cure = "save numbers or fixed-width strings; pad rows of different lengths and add `lengths`"
        raise UserError(f"{path}: {name} holds Python objects, and pickle is never read; {cure}")
    if dtype.names or dtype.subdtype or dtype.kind not in CURES:
        raise UserError(f"{path}: {name} holds {dtype.name} values, which are not numbers; save each field as an array")
    if dtype.kind == "M" and np.datetime_data(dtype)[0] == "generic":
        raise UserError(f"{path}: {name} holds dates without a unit; save them as array.astype('datetime64[s]')")
    if dtype.kind == "M" and dimensions > 1:
        raise UserError(f"{path}: {name} holds a date for each step; save the seconds as numbers, in a feature")
    if cure := CURES[dtype.kind]:
        raise UserError(f"{path}: {name} holds {dtype.name} values, which cannot be read; {cure}")


def _make_frame(path: Path, arrays: dict[str, Any], split: str) -> pl.DataFrame:
    sizes = {name: len(array) for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"{path}: arrays have different numbers of rows: {counts}")
    lengths = arrays.pop("lengths", None)
    if lengths is not None:
        _check_lengths(path, lengths, arrays)
    columns = {}
    for name, array in arrays.items():
        if array.ndim == 1:
            columns[name] = pl.Series(name, array.astype(_find_plain_type(array.dtype)))
        elif lengths is None:
            numbers = array.astype(np.float64) if array.dtype.kind in "biuf" else array
            columns[name] = pl.Series(name, numbers).cast(_list_type(array))
        else:
            cut = [row[:n].tolist() for row, n in zip(array, lengths.tolist(), strict=True)]
            columns[name] = pl.Series(name, cut, dtype=_list_type(array), strict=False)
    frame = pl.DataFrame(columns)
    return frame.with_columns(split=pl.lit(split)) if split else frame


def _check_lengths(path: Path, lengths: np.ndarray[Any, Any], arrays: dict[str, Any]) -> None:
    """Raise an error if lengths are not whole numbers between 0 and the steps of every array."""
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu":
        raise UserError(f"{path}: lengths has shape {lengths.shape} of {lengths.dtype.name}; give an integer per row")
    for name, array in arrays.items():
        wrong = (lengths < 0) | (lengths > array.shape[1]) if array.ndim > 1 else lengths < 0
        if wrong.any():
            row = int(wrong.argmax())
            steps = f"{array.shape[1]} steps" if array.ndim > 1 else "no steps"
            raise UserError(f"{path}: row {row + 1} of lengths is {lengths[row]}, but {name} has {steps}; correct it")


def _find_plain_type(dtype: np.dtype[Any]) -> np.dtype[Any] | str:
    """Return the type itself, or the nearest that polars knows."""
    if dtype.kind == "M":
        return "M8[us]"
    return {2: "f4", 4: "f4", 8: "f8"}.get(dtype.itemsize, "f8") if dtype.kind == "f" else dtype


def _list_type(array: np.ndarray[Any, Any]) -> pl.DataType | type[pl.DataType]:
    inner: pl.DataType | type[pl.DataType] = pl.Float64 if array.dtype.kind in "biuf" else pl.String
    for _ in range(array.ndim - 1):
        inner = pl.List(inner)
    return inner
