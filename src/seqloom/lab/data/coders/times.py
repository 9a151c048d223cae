"""Time stamps of the steps, as time since the step before."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError

Array = np.ndarray[Any, Any]
REGULAR = 1e-6  # spans this close to each other are equal
DAYS = r"^(\d{1,2})([./-])(\d{1,2})[./-](\d{4})\b"  # the year last


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
            raise UserError(f"column {self.column!r}: time stamps are missing or go backwards; sort and fill them")
        return spans.astype(np.float32), lengths

    def state(self) -> dict[str, Any]:
        return {"coder": "times", "column": self.column, "tick": self.tick}


def seconds(stamps: pl.Series) -> Array:
    """Numbers as they are; dates and times as seconds; text is taken for a date, NaN where it is none."""
    if stamps.dtype == pl.String:
        month = pl.when(pl.col("t").str.len_chars() == 7).then(pl.col("t") + "-01")  # 1949-01 is its first day
        whole = pl.DataFrame({"t": _year_first(stamps)}).select(month.otherwise(pl.col("t"))).to_series()
        try:
            stamps = whole.str.to_datetime(strict=False)
        except pl.exceptions.ComputeError:  # no form of a date that is known
            stamps = pl.Series([None] * len(whole), dtype=pl.Datetime)
    if stamps.dtype.is_temporal():
        stamps = stamps.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / 1e6
    return stamps.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()


def _year_first(stamps: pl.Series) -> pl.Series:
    """31.12.2026 as 2026-12-31, and 12/31/2026, too: of two numbers, one that exceeds 12 is the day."""
    known = stamps.drop_nulls()
    if not len(known) or not known.str.contains(DAYS).all():
        return stamps
    one, two = (known.str.extract(DAYS, k).cast(pl.Int64) for k in (1, 3))
    dots = bool((known.str.extract(DAYS, 2) == ".").all())
    first, second = (int(part.max()) for part in (one, two))  # type: ignore[arg-type]
    if not dots and first <= 12 and second <= 12:
        raise UserError(f"{known[0]!r} in {stamps.name!r}: day or month first? write it as 2026-12-31")
    day, month = (1, 3) if dots or first > 12 else (3, 1)
    return stamps.str.replace(DAYS, f"${{4}}-${{{month}}}-${{{day}}}")


def checked(stamps: pl.Series, place: Callable[[int], str]) -> Array:
    """The same, or an error that says which row has no time stamp."""
    found = seconds(stamps)
    if np.isnan(found).any():
        row = int(np.isnan(found).argmax())
        told = f"{stamps[row]!r} in {stamps.name!r} is no time stamp"
        raise UserError(f"{place(row)}: {told}; write 2026-01-31 or 2026-01-31 23:59:00")
    return found
