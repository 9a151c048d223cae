"""Rows of a table on a regular grid in time, so that a step always takes as long as any other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.calendar import Calendar, find_style
from seqloom.lab.data.pipeline.task_plan import MOST_REPEATS
from seqloom.lab.data.task import Notes

Array = np.ndarray[Any, Any]
Ranges = list[tuple[int, int]]  # first row and end of each series
STAMP = "_t"  # the column of stamps in seconds
MOST_GROWTH = 4  # times as many rows as before; with more gaps the table is not regular


def infer_calendar(column: pl.Series, stamps: Array, ranges: Ranges) -> Calendar:
    """Infer the frequency of a table whose rows are sorted by series and time.

    Args:
        column: The time stamps as they are written.
        stamps: The same in seconds.
        ranges: The rows of each series.
    """
    series = [stamps[a:b] for a, b in ranges]
    distinct = [np.unique(one) for one in series]
    calendar = Calendar.infer(column.name, distinct, find_style(column, stamps))
    repeats = len(stamps) - sum(map(len, distinct))
    steps = sum(int(calendar.count_steps(one).sum()) + 1 for one in distinct)
    if repeats > MOST_REPEATS * len(stamps) or steps > MOST_GROWTH * len(stamps):
        calendar.is_regular = False
    return calendar


def put_on_grid(
    frame: pl.DataFrame, ranges: Ranges, calendar: Calendar, group: str | None, notes: Notes
) -> tuple[pl.DataFrame, Ranges]:
    """Average rows with the same stamp, and add an empty row for each step that has none.

    Args:
        frame: Rows sorted by series and time, with their stamps in seconds in the column STAMP.
        ranges: The rows of each series.
        calendar: The frequency.
        group: The column that names the series.
        notes: Receives how many rows were averaged or added.
    """
    frame, ranges = _average_repeats(frame, ranges, calendar, group, notes)
    stamps = frame[STAMP].to_numpy()
    steps = [calendar.count_steps(stamps[a:b]) for a, b in ranges]
    added = sum(int((one - 1).sum()) for one in steps)
    if not added:
        return frame, ranges
    # For each row on the grid: the last row of the table, and the steps since then.
    rows, ahead = _spread(ranges, steps)
    spread = frame[rows].with_columns(pl.Series(STAMP, calendar.advance(stamps[rows], ahead)))
    values = [name for name in frame.columns if name not in (STAMP, group)]
    is_row = pl.Series(ahead == 0)
    spread = spread.with_columns(pl.when(is_row).then(pl.col(name)).alias(name) for name in values)
    ends = np.cumsum([int(one.sum()) + 1 for one in steps]).tolist()
    notes.say(
        f"steps without a row: {added:,} of {len(rows):,} ({calendar.name}); their inputs repeat the season before, or "
        "the last value, and are marked; their targets are not scored"
    )
    return spread, list(zip([0, *ends[:-1]], ends, strict=True))


def _spread(ranges: Ranges, steps: Sequence[Array]) -> tuple[Array, Array]:
    rows, ahead = [], []
    for (a, b), one in zip(ranges, steps, strict=True):
        counts = np.append(one, 1)
        rows.append(np.repeat(np.arange(a, b), counts))
        ends = np.cumsum(counts)
        ahead.append(np.arange(ends[-1]) - np.repeat(ends - counts, counts))
    return np.concatenate(rows), np.concatenate(ahead)


def _average_repeats(
    frame: pl.DataFrame, ranges: Ranges, calendar: Calendar, group: str | None, notes: Notes
) -> tuple[pl.DataFrame, Ranges]:
    """Average the numbers of rows in the same step of a series; of names, keep the first."""
    stamps = frame[STAMP].to_numpy()
    place = np.concatenate([np.append(0, np.cumsum(calendar.count_steps(stamps[a:b]))) for a, b in ranges])
    series = np.repeat(np.arange(len(ranges)), [b - a for a, b in ranges])
    marked = frame.with_columns(pl.Series("_series", series), pl.Series("_place", place))
    keys = ["_series", "_place"]
    if not marked.select(keys).is_duplicated().any():
        return frame, ranges
    averaged = marked.group_by(keys, maintain_order=True).agg(
        pl.col(name).mean() if frame.schema[name].is_numeric() and name not in (STAMP, group) else pl.col(name).first()
        for name in frame.columns
    )
    notes.warn(f"rows in the same step as another: {len(frame) - len(averaged):,} of {len(frame):,}; they are averaged")
    sizes = averaged.group_by("_series", maintain_order=True).len()["len"].to_list()
    ends = np.cumsum(sizes).tolist()
    return averaged.drop(keys), list(zip([0, *ends[:-1]], ends, strict=True))
