"""numpy's .npz: x (N, T) or (N, T, D) and y, perhaps `lengths`, perhaps x_train, y_train, x_test ..."""

from __future__ import annotations

import errno
import math
import zipfile
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import packed

SUFFIXES = (".npz",)


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: damaged, or not an .npz file; write it again")
    try:
        _check_claims(path, options)
    except OSError as error:
        if error.errno != errno.EINVAL:  # zipfile seeks to where a damaged entry says
            raise
        raise UserError(f"{path}: damaged; write it again") from None
    except RuntimeError:  # zipfile's word for a password
        raise UserError(f"{path}: is encrypted, or damaged; write it again without a password") from None
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except ValueError:
        cure = "save numbers or fixed-width strings; for rows of different length pad them and add `lengths`"
        raise UserError(f"{path}: holds Python objects, and pickle is never read; {cure}") from None
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        column, _, part = name.rpartition("_")
        known = part in ("train", "valid", "val", "test")
        parts.setdefault(part if known else "", {})[column if known else name] = array
    if not parts:
        raise UserError(f"{path}: holds no arrays")
    frames = [_frame(path, arrays, part) for part, arrays in parts.items()]
    return pl.concat(frames, how="diagonal_relaxed").lazy()


def _check_claims(path: Path, options: Reading) -> None:
    """Raise where arrays are larger than is allowed, or than the bytes that are there for them."""
    from numpy.lib import format as npy

    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        packed.check_size(path, sum(member.file_size for member in members), options.unpacked_gib)
        for member in members:
            with archive.open(member) as file:
                try:
                    version = npy.read_magic(file)
                    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
                    shape, _, dtype = read(file)
                except ValueError as error:
                    raise UserError(f"{path}: {member.filename} is damaged ({error}); write it again") from None
            if math.prod(shape) * dtype.itemsize > member.file_size and not dtype.hasobject:
                raise UserError(f"{path}: {member.filename} says {shape}, more than it holds; write it again")


def _frame(path: Path, arrays: dict[str, Any], split: str) -> pl.DataFrame:
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"{path}: arrays have different numbers of rows: {told}")
    lengths = arrays.pop("lengths", None)
    columns = {}
    for name, array in arrays.items():
        if array.ndim > 3:
            raise UserError(f"{path}: {name} has shape {array.shape}; at most (rows, steps, features) can be read")
        if array.ndim == 1:
            columns[name] = pl.Series(name, array)
        elif lengths is None:
            columns[name] = pl.Series(name, array).cast(_lists(array))
        else:
            cut = [row[:n].tolist() for row, n in zip(array, lengths.tolist(), strict=True)]
            columns[name] = pl.Series(name, cut, dtype=_lists(array))
    frame = pl.DataFrame(columns)
    return frame.with_columns(split=pl.lit(split)) if split else frame


def _lists(array: Any) -> Any:
    inner: Any = pl.Float64 if array.dtype.kind in "fiub" else pl.String
    for _ in range(array.ndim - 1):
        inner = pl.List(inner)
    return inner
