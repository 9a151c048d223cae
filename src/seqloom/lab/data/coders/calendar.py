"""The calendar of a table: the frequency of its time stamps, steps between them, and the dates that follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.coder import Coder
from seqloom.lab.data.coders.times import UNIX_RANGE, UNIX_UNITS, Style, find_unix_unit, to_seconds

Array = np.ndarray[Any, Any]
Unit = Literal["seconds", "business days", "months"]
MINUTE, HOUR, DAY, WEEK = 60.0, 3600.0, 86400.0, 604800.0  # seconds
SHORTEST_MONTH = 27 * DAY  # between two monthly stamps, with a margin of a day
TOLERANCE = 0.15  # a step is regular if it differs by at most this share from a whole number of ticks
REGULAR_SHARE = 0.9  # share of the steps that must be regular
MODE_SHARE = 0.3  # share of equal steps from which the most frequent one is the tick; otherwise the median is
NAMES = {MINUTE: "every minute", HOUR: "hourly", DAY: "daily", WEEK: "weekly"}
MONTH_NAMES = {1: "monthly", 3: "quarterly", 12: "yearly"}
DATE_RANGE = (-62_135_596_800.0, 250_000_000_000.0)  # seconds: from the year 1 to 9892, room for a forecast
FORMATS = {"time": "%Y-%m-%d %H:%M:%S", "date": "%Y-%m-%d", "month": "%Y-%m"}


class Calendar(Coder, key="calendar"):
    """Count steps between time stamps, and list the stamps that follow.

    Args:
        column: The column of time stamps.
        unit: The unit of a step.
        step: The size of a step in that unit.
        style: How stamps are written; "unix" for seconds since 1970, "unix ms" for milliseconds, and so on;
            "number" for plain numbers.
        month_end: Whether monthly stamps are the last days of their months.
        is_regular: Whether rows can be put on a grid; otherwise a step is the typical interval.

    Example:
        >>> Calendar("day", "business days", style="date").follow("2026-01-30", 2)
        ['2026-02-02', '2026-02-03']
    """

    def __init__(
        self,
        column: str,
        unit: Unit = "seconds",
        step: float = 1.0,
        style: Style = "time",
        month_end: bool = False,
        is_regular: bool = True,
    ) -> None:
        self.column, self.unit, self.step, self.style = column, unit, step, style
        self.month_end, self.is_regular = month_end, is_regular

    @staticmethod
    def infer(column: str, series: Sequence[Array], style: Style) -> Calendar:
        """Infer the frequency from the sorted, distinct stamps of each series, in seconds."""
        spans = np.concatenate([np.diff(stamps) for stamps in series] or [np.empty(0)])
        if not len(spans):
            return Calendar(column, "seconds", DAY if style != "number" else 1.0, style)
        stamps = np.concatenate(series)
        if style != "number":
            months = _infer_months(column, stamps, series, spans, style)
            if months is not None:
                return months
        tick = _find_tick(spans)
        if style != "number" and tick == DAY and _has_only_weekdays(stamps, spans):
            return Calendar(column, "business days", 1, style)
        ratio = spans / tick
        regular = (np.abs(ratio - np.round(ratio)) <= TOLERANCE) & (np.round(ratio) >= 1)
        return Calendar(column, "seconds", tick, style, is_regular=bool(regular.mean() >= REGULAR_SHARE))

    @property
    def name(self) -> str:
        """The frequency in words."""
        if self.unit == "business days":
            return "business days"
        if self.unit == "months":
            return MONTH_NAMES.get(int(self.step), f"every {self.step:g} months")
        if self.style == "number":
            return f"{self.step:g} apart"
        if self.step in NAMES:
            return NAMES[self.step]
        size, word = next(
            ((s, w) for s, w in ((DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")) if self.step % s == 0),
            (1.0, "seconds"),
        )
        return f"every {self.step / size:g} {word}"

    @property
    def seasons(self) -> tuple[int, ...]:
        """The usual seasons in steps, the shortest first: a day and a week of hours, a week of days."""
        if self.unit == "business days":
            return (5,)
        if self.unit == "months":
            return (int(12 // self.step),) if self.step < 12 else ()
        if self.style == "number" or not self.is_regular:
            return ()
        cycles = (DAY, WEEK) if self.step < DAY else (WEEK,) if self.step < WEEK else (52 * WEEK,)
        return tuple(round(cycle / self.step) for cycle in cycles if cycle >= 2 * self.step)

    def count_steps(self, stamps: Array) -> Array:
        """Return the number of steps between each stamp and the next one; stamps (n,) in seconds, sorted."""
        if self.unit == "months":
            return np.round(np.diff(_to_months(stamps)) / self.step).astype(np.int64)
        if self.unit == "business days":
            days = _to_days(stamps)
            return np.busday_count(days[:-1], days[1:]).astype(np.int64)
        return np.round(np.diff(stamps) / self.step).astype(np.int64)

    def advance(self, stamps: Array, steps: Array) -> Array:
        """Return the stamps, in seconds, that follow others by a number of steps."""
        if self.unit == "seconds":
            return stamps + steps * self.step
        within = stamps % DAY
        if self.unit == "business days":
            days = np.busday_offset(_to_days(stamps), steps, roll="backward")
        else:
            months = _to_months(stamps) + np.round(steps * self.step).astype(np.int64)
            first, last = _find_first_days(months), _find_first_days(months + 1) - 1
            of_month = (_to_days(stamps) - _find_first_days(_to_months(stamps))).astype(int)
            days = last if self.month_end else np.minimum(first + of_month, last)
        return days.astype("datetime64[s]").astype(np.float64) + within

    def follow(self, stamp: object, count: int) -> list[str | float]:
        """Return the next `count` stamps after one, as they are written in the file.

        Raises:
            UserError: If it is not a time stamp like those of the file.
        """
        last = to_seconds(pl.Series([stamp]))
        is_number = self.style == "number" or self.style in UNIX_UNITS
        if not np.isfinite(last).all() or not (is_number or DATE_RANGE[0] <= last[0] <= DATE_RANGE[1]):
            expected = "a number" if is_number else "a date such as 2026-01-31"
            raise UserError(f"{str(stamp)[:40]!r} in {self.column!r} is not a time stamp; give {expected}")
        return self.format(self.advance(np.repeat(last, count), np.arange(1, count + 1)))

    def format(self, stamps: Array) -> list[str | float]:
        """Write stamps in seconds as the file does."""
        unit = UNIX_UNITS.get(self.style, 1)
        if unit > 1:
            exact = min(unit, 10**6)  # a float64 holds microseconds since 1970
            return [round(float(v) * exact) * (unit // exact) for v in stamps]
        if self.style in ("unix", "number"):
            return [int(v) if float(v).is_integer() else float(v) for v in stamps]
        times = pl.Series(np.round(stamps * 1e6).astype(np.int64)).cast(pl.Datetime("us"))
        return times.dt.strftime(FORMATS[self.style]).to_list()


def find_style(stamps: pl.Series, seconds: Array) -> Style:
    """Find out how the stamps of a column are written."""
    if stamps.dtype.is_numeric():
        unit = find_unix_unit(stamps.cast(pl.Float64).to_numpy())
        if unit > 1:
            return next(style for style, size in UNIX_UNITS.items() if size == unit)
        in_range = len(seconds) and seconds.min() >= UNIX_RANGE[0] and seconds.max() < UNIX_RANGE[1]
        return "unix" if in_range else "number"
    if stamps.dtype == pl.String and bool((stamps.drop_nulls().str.len_chars() == 7).all()):
        return "month"
    return "date" if bool((seconds % DAY == 0).all()) else "time"


def _find_tick(spans: Array) -> float:
    values, counts = np.unique(spans, return_counts=True)
    return float(values[counts.argmax()] if counts.max() >= MODE_SHARE * len(spans) else np.median(spans)) or 1.0


def _has_only_weekdays(stamps: Array, spans: Array) -> bool:
    """Return whether no stamp lies on a weekend although the stamps span at least two."""
    weekday = (_to_days(stamps).astype(np.int64) + 3) % 7  # 1970-01-01 was a Thursday; Monday is 0
    return bool((weekday < 5).all()) and int((spans == 3 * DAY).sum()) >= 2


def _infer_months(column: str, stamps: Array, series: Sequence[Array], spans: Array, style: Style) -> Calendar | None:
    """Return a calendar of months if all stamps are the same day of their months, or the last one."""
    if spans.min() < SHORTEST_MONTH or len(np.unique(stamps % DAY)) > 1:
        return None
    days, months = _to_days(stamps), _to_months(stamps)
    of_month = (days - _find_first_days(months)).astype(int)
    is_end = bool((_find_first_days(months + 1) - 1 == days).all())
    if not is_end and len(np.unique(of_month)) > 1:
        return None
    step = int(_find_tick(np.concatenate([np.diff(_to_months(one)) for one in series])))
    return Calendar(column, "months", max(1, step), style, month_end=is_end)


def _to_days(stamps: Array) -> Array:
    return np.floor(stamps / DAY).astype(np.int64).astype("datetime64[D]")


def _find_first_days(months: Array) -> Array:
    return months.astype("datetime64[M]").astype("datetime64[D]")


def _to_months(stamps: Array) -> Array:
    """Return the number of months since January 1970."""
    return _to_days(stamps).astype("datetime64[M]").astype(np.int64)
