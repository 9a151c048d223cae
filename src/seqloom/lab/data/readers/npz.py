"""NumPy .npz files: x (N, T) or (N, T, D) and y, optionally `lengths`, and optionally x_train, y_train, x_test ..."""

from __future__ import annotations

import errno
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.compression import check_size

SUFFIXES = (".npz",)


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Read the arrays of a file as columns; a name such as x_train gives the rows a split."""
    import numpy as np

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
    except ValueError:
        cure = "save numbers or fixed-width strings; pad rows of different lengths and add `lengths`"
        raise UserError(f"{path}: holds Python objects, and pickle is never read; {cure}") from None
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
    """Raise an error if arrays claim to be larger than allowed, or larger than their data."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        check_size(path, sum(member.file_size for member in members), options.unpacked_gib)
        for member in members:
            with archive.open(member) as file:
                try:
                    version = npy.read_magic(file)
                    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                    shape, _, dtype = read(file)
                except ValueError as error:
                    raise UserError(f"{path}: {member.filename} is damaged ({error}); write it again") from None
            if math.prod(shape) * dtype.itemsize > member.file_size and not dtype.hasobject:
                raise UserError(
                    f"{path}: {member.filename} claims the shape {shape}, more than it holds; write it again"
                )


def _make_frame(path: Path, arrays: dict[str, Any], split: str) -> pl.DataFrame:
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"{path}: arrays have different numbers of rows: {counts}")
    lengths = arrays.pop("lengths", None)
    columns = {}
    for name, array in arrays.items():
        if array.ndim > 3:
            raise UserError(f"{path}: {name} has shape {array.shape}; at most (rows, steps, features) can be read")
        if array.ndim == 1:
            columns[name] = pl.Series(name, array)
        elif lengths is None:
            columns[name] = pl.Series(name, array).cast(_list_type(array))
        else:
            cut = [row[:n].tolist() for row, n in zip(array, lengths.tolist(), strict=True)]
            columns[name] = pl.Series(name, cut, dtype=_list_type(array))
    frame = pl.DataFrame(columns)
    return frame.with_columns(split=pl.lit(split)) if split else frame


def _list_type(array: np.ndarray[Any, Any]) -> pl.DataType | type[pl.DataType]:
    inner: pl.DataType | type[pl.DataType] = pl.Float64 if array.dtype.kind in "fiub" else pl.String
    for _ in range(array.ndim - 1):
        inner = pl.List(inner)
    return inner
