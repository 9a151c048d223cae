"""Time stamps of steps, encoded as the time since the previous step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-6  # relative difference up to which intervals are equal
YEAR_LAST = r"^(\d{1,2})([./-])(\d{1,2})[./-](\d{4})\b"


class TimesCoder:
    """Encode the interval before each step in units of the median interval; 0 for the first step of a row."""

    def __init__(self, column: str, tick: float = 1.0) -> None:
        self.column, self.tick, self.is_regular = column, tick, False

    def fit(self, frames: Iterable[pl.DataFrame]) -> None:
        self.tick = 1.0
        spans = np.concatenate([self._list_intervals(frame) for frame in frames])
        self.tick = float(np.median(spans[spans > 0])) if (spans > 0).any() else 1.0
        self.is_regular = bool(len(spans) == 0 or np.abs(spans / self.tick - 1).max() < TOLERANCE)

    def _list_intervals(self, frame: pl.DataFrame) -> Array:
        """Return the intervals before all steps except the first of each row."""
        spans, lengths = self.encode(frame)
        first = np.cumsum(lengths[lengths > 0]) - lengths[lengths > 0]
        return np.delete(spans, first)

    def encode(self, frame: pl.DataFrame) -> tuple[Array, Array]:
        column = frame[self.column]
        lengths = column.list.len().fill_null(0).to_numpy().astype(np.int64)
        stamps = to_seconds(column.explode(empty_as_null=False, keep_nulls=False))
        spans = np.diff(stamps, prepend=stamps[:1]) / self.tick
        spans[np.cumsum(lengths[lengths > 0]) - lengths[lengths > 0]] = 0
        if (spans < 0).any() or np.isnan(spans).any():
            raise UserError(f"column {self.column!r}: time stamps are missing or decrease; fill and sort them")
        return spans.astype(np.float32), lengths

    def state(self) -> dict[str, Any]:
        return {"coder": "times", "column": self.column, "tick": self.tick}


def to_seconds(stamps: pl.Series) -> Array:
    """Convert dates and times, or texts of them, to seconds; numbers stay, and texts that are no dates give NaN."""
    if stamps.dtype == pl.String:
        month = pl.when(pl.col("t").str.len_chars() == 7).then(pl.col("t") + "-01")  # 1949-01 means its first day
        whole = pl.DataFrame({"t": _put_year_first(stamps)}).select(month.otherwise(pl.col("t"))).to_series()
        try:
            stamps = whole.str.to_datetime(strict=False)
        except pl.exceptions.ComputeError:  # no known date format
            stamps = pl.Series([None] * len(whole), dtype=pl.Datetime)
    if stamps.dtype.is_temporal():
        stamps = stamps.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / 1e6
    return stamps.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()


def _put_year_first(stamps: pl.Series) -> pl.Series:
    """Rewrite 31.12.2026 or 12/31/2026 as 2026-12-31; without dots, the number that exceeds 12 is the day."""
    known = stamps.drop_nulls()
    if not len(known) or not known.str.contains(YEAR_LAST).all():
        return stamps
    one, two = (known.str.extract(YEAR_LAST, k).cast(pl.Int64) for k in (1, 3))
    dots = bool((known.str.extract(YEAR_LAST, 2) == ".").all())
    first, second = (int(part.max()) for part in (one, two))  # type: ignore[arg-type]
    if not dots and first <= 12 and second <= 12:
        raise UserError(f"{known[0]!r} in {stamps.name!r} may have the day or the month first; write it as 2026-12-31")
    day, month = (1, 3) if dots or first > 12 else (3, 1)
    return stamps.str.replace(YEAR_LAST, f"${{4}}-${{{month}}}-${{{day}}}")


def parse_stamps(stamps: pl.Series, place: Callable[[int], str]) -> Array:
    """Convert time stamps to seconds; raise an error for the first value that is not a time stamp.

    Args:
        stamps: Numbers, dates or texts.
        place: Returns the file and number of a row for the message.
    """
    seconds = to_seconds(stamps)
    if np.isnan(seconds).any():
        row = int(np.isnan(seconds).argmax())
        problem = f"{stamps[row]!r} in {stamps.name!r} is not a time stamp"
        raise UserError(f"{place(row)}: {problem}; write 2026-01-31 or 2026-01-31 23:59:00")
    return seconds
