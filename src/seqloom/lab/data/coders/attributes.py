"""Numbers and names that describe a row as a whole, besides its sequence: one vector per row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.table import TableCoder

Array = np.ndarray[Any, Any]


class AttributesCoder:
    """Encode columns as (A,) features of a row: numbers are standardised, names have one feature for each value."""

    def __init__(
        self,
        columns: Sequence[str],
        categories: Mapping[str, Sequence[str]] | None = None,
        scale: Mapping[str, Any] | None = None,
    ) -> None:
        self.columns = tuple(columns)
        self._table = TableCoder(columns, (), categories, scale)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the A features."""
        return self._table.space.names

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self._table.fit(pl.concat([frame.select(self.columns) for frame in frames]))

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        n = len(frame)
        return self._table.encode(frame, np.arange(n)), np.ones(n, dtype=np.int64)

    def find_type(self, column: str) -> pl.DataType | type[pl.DataType]:
        """Return the type of a column in new rows."""
        return pl.String if column in self._table.categories else pl.Float64

    def state(self) -> dict[str, Any]:
        state = self._table.state()
        common = {name: state[name] for name in ("columns", "categories", "scale")}
        return {"coder": "attributes"} | common
