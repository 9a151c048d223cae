"""numpy's .npz: x (N, T) or (N, T, D) and y, perhaps `lengths`, perhaps x_train, y_train, x_test ..."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.tasks.reading import Reading

SUFFIXES = (".npz",)


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    import numpy as np

    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path}: damaged, or not an .npz file; write it again")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except ValueError:
        cure = "save numbers or fixed-width strings; for rows of different length pad them and add `lengths`"
        raise ValueError(f"{path}: holds Python objects, and pickle is never read; {cure}") from None
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        column, _, part = name.rpartition("_")
        known = part in ("train", "valid", "val", "test")
        parts.setdefault(part if known else "", {})[column if known else name] = array
    if not parts:
        raise ValueError(f"{path}: holds no arrays")
    frames = [_frame(path, arrays, part) for part, arrays in parts.items()]
    return pl.concat(frames, how="diagonal_relaxed").lazy()


def _frame(path: Path, arrays: dict[str, Any], split: str) -> pl.DataFrame:
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"{path}: arrays have different numbers of rows: {told}")
    lengths = arrays.pop("lengths", None)
    columns = {}
    for name, array in arrays.items():
        if array.ndim > 3:
            raise ValueError(f"{path}: {name} has shape {array.shape}; at most (rows, steps, features) can be read")
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
