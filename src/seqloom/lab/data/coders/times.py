"""Time stamps of steps, encoded as the time since the previous step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.coder import Coder

Array = np.ndarray[Any, Any]
Style = Literal["time", "date", "month", "unix", "unix ms", "unix us", "unix ns", "number"]
UNIX_RANGE = (946_684_800, 2_208_988_800)  # seconds from 1970 to the years 2000 and 2040
UNIX_UNITS: dict[Style, int] = {"unix": 1, "unix ms": 10**3, "unix us": 10**6, "unix ns": 10**9}  # in a second
TOLERANCE = 1e-6  # relative difference up to which intervals are equal
YEAR_LAST = r"^(\d{1,2})([./-])(\d{1,2})[./-](\d{4})\b"
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MONTH = (
    r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)\.?"
)
DAY_AND_NAME = rf"(?i)^(\d{{1,2}})[ -]{MONTH},?[ -](\d{{4}})\b"  # 2 January 2026, 02-Jan-2026
NAME_AND_DAY = rf"(?i)^{MONTH} (\d{{1,2}}),? (\d{{4}})\b"  # Jan 2, 2026
HALF_DAY = r"(?i)^(.+?\d:\d{2})(:\d{2})?(?:\.0+)? ?([ap])\.?m\.?$"  # 11:59 PM


class TimesCoder(Coder, key="times"):
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


def to_seconds(stamps: pl.Series) -> Array:
    """Convert dates and times, or texts of them, to seconds; texts that are not dates give NaN.

    Numbers stay as they are, except milliseconds, microseconds and nanoseconds since 1970.
    """
    if stamps.dtype == pl.String:
        month = pl.when(pl.col("t").str.len_chars() == 7).then(pl.col("t") + "-01")  # 1949-01 means its first day
        whole = pl.DataFrame({"t": _put_year_first(stamps)}).select(month.otherwise(pl.col("t"))).to_series()
        try:
            stamps = _parse_half_days(whole) if _all_match(whole, HALF_DAY) else whole.str.to_datetime(strict=False)
        except pl.exceptions.ComputeError:  # no known date format
            stamps = pl.Series([None] * len(whole), dtype=pl.Datetime)
    if stamps.dtype.is_temporal():
        stamps = stamps.cast(pl.Datetime("us")).to_physical().cast(pl.Float64) / 1e6
        return stamps.fill_null(float("nan")).to_numpy().copy()
    numbers = stamps.cast(pl.Float64).fill_null(float("nan")).to_numpy().copy()
    return numbers / find_unix_unit(numbers)


def _all_match(stamps: pl.Series, pattern: str) -> bool:
    known = stamps.drop_nulls()
    return bool(len(known) and known.str.contains(pattern).all())


def _parse_half_days(stamps: pl.Series) -> pl.Series:
    """Parse 2026-12-31 11:59 PM, with seconds or without."""
    parts = [stamps.str.extract(HALF_DAY, k) for k in (1, 2, 3)]
    whole = parts[0] + parts[1].fill_null(":00") + " " + parts[2].str.to_uppercase() + "M"
    return whole.str.replace("T", " ").str.to_datetime("%Y-%m-%d %I:%M:%S %p", strict=False)


def _put_year_first(stamps: pl.Series) -> pl.Series:
    """Rewrite 31.12.2026, 12/31/2026 or Dec 31, 2026 as 2026-12-31.

    Without dots or the name of the month, the number that exceeds 12 is the day.
    """
    known = stamps.drop_nulls()
    for pattern, (day, month) in ((DAY_AND_NAME, (1, 2)), (NAME_AND_DAY, (2, 1))):
        if _all_match(stamps, pattern):
            short = stamps.str.extract(pattern, month).str.to_lowercase().str.slice(0, 3)
            number = short.replace_strict({name: f"{k:02d}" for k, name in enumerate(MONTHS, 1)}, default=None)
            date = stamps.str.extract(pattern, 3) + "-" + number + "-" + stamps.str.extract(pattern, day).str.zfill(2)
            return date + stamps.str.replace(pattern, "")
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


def find_unix_unit(numbers: Array) -> int:
    """Return 1,000, 1,000,000 or 1,000,000,000 if all numbers are times since 1970 in that part of a second, else 1."""
    known = numbers[np.isfinite(numbers)]
    for unit in list(UNIX_UNITS.values())[1:] if len(known) else ():
        if known.min() >= UNIX_RANGE[0] * unit and known.max() < UNIX_RANGE[1] * unit:
            return unit
    return 1
