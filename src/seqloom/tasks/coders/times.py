"""Time stamps of the steps, as time since the step before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

Array = np.ndarray[Any, Any]
REGULAR = 1e-6  # spans this close to each other are equal


class TimesCoder:
    """dt of every step, the usual one being 1; 0 for a row's first step."""

    def __init__(self, column: str, tick: float = 1.0) -> None:
        self.column, self.tick, self.regular = column, tick, False

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self.tick = 1.0
        spans = np.concatenate([self._later(frame) for frame in frames])
        self.tick = float(np.median(spans[spans > 0])) if (spans > 0).any() else 1.0
        self.regular = bool(len(spans) == 0 or np.abs(spans / self.tick - 1).max() < REGULAR)

    def _later(self, frame: pl.DataFrame) -> Array:
        """The spans of all steps but the first of each row."""
        spans, lengths = self.encode(frame)
        first = np.cumsum(lengths[lengths > 0]) - lengths[lengths > 0]
        return np.delete(spans, first)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        column = frame[self.column]
        lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        stamps = seconds(column.explode(empty_as_null=False, keep_nulls=False))
        spans = np.diff(stamps, prepend=stamps[:1]) / self.tick
        spans[np.cumsum(lengths[lengths > 0]) - lengths[lengths > 0]] = 0
        if (spans < 0).any() or np.isnan(spans).any():
            raise ValueError(f"column {self.column!r}: time stamps are missing or go backwards; sort and fill them")
        return spans.astype(np.float32), lengths

    def state(self) -> dict[str, Any]:
        return {"coder": "times", "column": self.column, "tick": self.tick}


def seconds(stamps: pl.Series) -> Array:
    """Numbers as they are; dates and times as seconds; text is taken for a date."""
    if stamps.dtype == pl.String:
        month = pl.when(pl.col("t").str.len_chars() == 7).then(pl.col("t") + "-01")  # 1949-01 is its first day
        whole = pl.DataFrame({"t": stamps}).select(month.otherwise(pl.col("t")))
        stamps = whole.to_series().str.to_datetime(strict=False)
    if stamps.dtype.is_temporal():
        stamps = stamps.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / 1e6
    return stamps.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
