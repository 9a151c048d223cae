"""Names as numbers: one per row, or one per token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import polars as pl

from seqloom.lab.data.task import UNSEEN, Classes, Tags

Array = np.ndarray[Any, Any]


class LabelCoder:
    """Number class names in alphabetical order, names that are numbers by size."""

    def __init__(self, column: str, per_token: bool = False, names: Sequence[str] = ()) -> None:
        self.column, self.per_token = column, per_token
        self._set_names(names)

    def _set_names(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._enum = pl.Enum(self.names)

    @property
    def space(self) -> Classes | Tags:
        return Tags(self.names) if self.per_token else Classes(self.names)

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        names: set[str] = set()
        for frame in frames:
            names |= set(self._read_names(frame).drop_nulls().unique())
        self._set_names(sorted(names, key=_sort_key))

    def _read_names(self, frame: pl.DataFrame) -> pl.Series:
        column = frame[self.column]
        column = column.explode(empty_as_null=False) if self.per_token else column
        if column.dtype.is_float() and (column.drop_nulls() == column.drop_nulls().round()).all():
            column = column.cast(pl.Int64, strict=False)  # 1.0 and 1 are the same class
        return column.cast(pl.String)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        ids = self._read_names(frame).cast(self._enum, strict=False).to_physical().cast(pl.Int64).fill_null(UNSEEN)
        if not self.per_token:
            return ids.to_numpy(), np.ones(len(frame), dtype=np.int64)
        return ids.to_numpy(), frame[self.column].list.len().fill_null(0).to_numpy().astype(np.int64)

    def decode(self, ids: int | Sequence[int]) -> str | list[str]:
        if self.per_token:
            return [self.names[k] for k in cast(Sequence[int], ids)]
        return self.names[int(cast(int, ids))]

    def state(self) -> dict[str, Any]:
        return {"coder": "labels", "column": self.column, "per_token": self.per_token, "names": list(self.names)}


def _sort_key(name: str) -> tuple[int, float, str]:
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)
