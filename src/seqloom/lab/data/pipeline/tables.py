"""A table of time series: its rows are sorted, put on a grid, split and encoded, with the windows of each split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.calendar import Calendar, find_style
from seqloom.lab.data.coders.series import ValuesCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.coders.times import parse_stamps
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.encoding import Encoding
from seqloom.lab.data.pipeline.ragged import RaggedWriter
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import MOST_REPEATS, TaskPlan
from seqloom.lab.data.task import Notes, Split

Array = np.ndarray[Any, Any]
Borders = dict[str, tuple[float, float]]  # split -> start and end, as shares of the rows or as rows
DEFAULTS = Reading()
MONTH = 30 * 24 * 3600  # seconds in a month of the usual ETT borders
SHARES = (0.7, 0.1, 0.2)  # shares of train, valid and test
SERIES_FILE, STAMPS_FILE, UNITS_FILE = "series.arrow", "stamps.npy", "units.npy"
Ranges = list[tuple[int, int]]  # first row and end of each series
STAMP = "_t"  # the column of stamps in seconds
MOST_GROWTH = 4  # times as many rows as before; with more gaps the table is not regular


@dataclass(frozen=True)
class TimeTable:
    """Rows sorted by series and time; on a regular grid if the calendar is regular."""

    frame: pl.DataFrame  # the columns of the plan, and the stamps in seconds in the column STAMP
    ranges: Ranges  # the first row and the end of each series
    calendar: Calendar | None  # the frequency; None without time stamps
    names: list[str]  # the name of each series, "" for a single one

    @property
    def first(self) -> Array:
        """The index of the first row of each row's series, (rows,)."""
        return np.repeat([a for a, _ in self.ranges], [b - a for a, b in self.ranges])


def read_table(source: Source, plan: TaskPlan, calendar: Calendar | None, notes: Notes) -> TimeTable:
    """Read, sort and complete the rows of a table.

    Args:
        source: The table; the column of the group may be absent, then it is one series.
        calendar: The frequency. Default: inferred from the rows.
    """
    present = source.frame().collect_schema().names()
    group = plan.group if plan.group in present else None  # new rows may be one series
    names = [n for n in (group, plan.time) if n]
    missing = [n for n in (*plan.input, *([plan.time] if plan.time else [])) if n not in present]
    if missing:
        raise UserError(f"{source.parts[0].label}: no column {missing[0]!r}, which the training data have; add it")
    chosen = [n for n in dict.fromkeys([*names, *plan.input, *plan.target]) if n in present]
    frame = source.frame().select(chosen).collect()
    if plan.time:
        frame = frame.with_columns(pl.Series(STAMP, parse_stamps(frame[plan.time], source.place)))
    keys = [n for n in (group, STAMP if plan.time else None) if n]
    frame = frame.sort(keys, maintain_order=True) if keys else frame
    sizes = frame.group_by(group, maintain_order=True).len()["len"].to_list() if group else [len(frame)]
    ends = np.cumsum(sizes).tolist()
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    if plan.time:
        calendar = calendar or infer_calendar(frame[plan.time], frame[STAMP].to_numpy(), ranges)
        if calendar.is_regular:
            frame, ranges = put_on_grid(frame, ranges, calendar, group, notes)
    labels = [str(frame[group][a]) for a, _ in ranges] if group else [""]
    return TimeTable(frame, ranges, calendar, labels)


def build_windows(source: Source, encoding: Encoding, work: Path) -> None:
    """Fit the scales on the training rows of a table, then write the table and its windows."""
    plan = encoding.plan
    if encoding.options.rows is not None:
        source = _keep_latest(source, plan, encoding.options.rows, work, encoding.notes)
    table = read_table(source, plan, None, encoding.notes)
    encoding.times = table.calendar
    _describe_frequency(table, encoding)
    borders = _find_borders(table, encoding, source)
    longest = max(b - a for a, b in table.ranges)
    sizes = {name: b - a for name, (a, b) in ((name, _find_side(side, 0, longest)) for name, side in borders.items())}
    encoding.options = _shrink_windows(encoding.options, sizes, encoding.notes)
    train = np.concatenate([np.arange(*_find_side(borders["train"], a, b)) for a, b in table.ranges])
    encoding.x = TableCoder(plan.input, plan.known, season=_find_season(table.calendar))
    encoding.x.fit(table.frame[train])
    encoding.y = ValuesCoder(plan.target)
    encoding.y.fit([table.frame[train]])
    if len(plan.target) > 1 and not encoding.options.target:
        encoding.notes.say(
            f"{len(plan.target)} columns are forecast; choose some with target=..., and name inputs whose future is "
            "known with known=..."
        )
    one = len(plan.target) == 1
    unit = f"the units of {plan.target[0]!r}" if one else "standard deviations of each training column"
    encoding.notes.say(f"errors are in {unit}")
    write_windows(source, table, encoding, borders, work)


def _keep_latest(source: Source, plan: TaskPlan, rows: int, work: Path, notes: Notes) -> Source:
    """Write the latest rows of each series as a separate table."""
    table = read_table(source, plan, Calendar(plan.time or "", is_regular=False), notes)  # as they are
    chosen = np.concatenate([np.arange(max(a, b - rows), b) for a, b in table.ranges])
    if len(chosen) == len(table.frame):
        return source
    notes.say(f"the latest {len(chosen):,} of {len(table.frame):,} rows are used")
    place = work / "latest.arrow"
    table.frame[chosen].drop(STAMP, strict=False).write_ipc(place)
    return replace(source, parts=(replace(source.parts[0], table=place, rows=len(chosen)),))


def _describe_frequency(table: TimeTable, encoding: Encoding) -> None:
    calendar, time = table.calendar, encoding.plan.time
    if calendar is None:
        return
    if calendar.is_regular:
        encoding.notes.say(f"the time stamps {time!r} are {calendar.name}")
    else:
        encoding.notes.say(
            f"time stamps {time!r} are irregular, so a step is a row; batches contain the time since the previous step"
        )


def _find_borders(table: TimeTable, encoding: Encoding, source: Source) -> Borders:
    """Turn the option `borders` into a start and an end for each split."""
    label, option = source.parts[0].label, encoding.options.borders
    if option == "ett":
        if not encoding.plan.time:
            raise UserError(f"{label}: borders=ett needs time stamps; name their column with time=...")
        start, end = table.ranges[0]
        tick = float(np.median(np.diff(table.frame[STAMP].to_numpy()[start:end])))
        months = [round(m * MONTH / tick) for m in (12, 16, 20)]
        if months[-1] > end - start:
            raise UserError(f"{label}: borders=ett needs 20 months, {months[-1]} rows, got {end - start}")
        edges = [0.0, *map(float, months)]
    else:
        parts = list(SHARES) if option == "auto" else [float(part) for part in option.split("/")]
        total = sum(parts)
        in_rows = total > 100.5  # 70/10/20 and 0.7/0.1/0.2 are shares
        edges = [0.0, *np.cumsum(parts if in_rows else [p / total for p in parts]).tolist()]
    borders = dict(zip(("train", "valid", "test"), pairwise(edges), strict=True))
    unit = "rows" if edges[-1] > 1.5 else "of the rows"
    sizes = ", ".join(f"{name} {b - a:g}" for name, (a, b) in borders.items())
    encoding.notes.say(f"split by time: {sizes} {unit}")
    return borders


def _find_side(side: tuple[float, float], start: int, end: int) -> tuple[int, int]:
    """Return the rows of one split within the series [start, end)."""
    size = end - start
    a, b = (round(edge * size) if side[1] <= 1.5 else round(edge) for edge in side)
    return start + min(a, size), start + min(b, size)


def write_windows(source: Source, table: TimeTable, encoding: Encoding, borders: Borders, work: Path) -> None:
    """Write the encoded table, the first row of every window of each split, and facts about each series."""
    frame, ranges, calendar = table.frame, table.ranges, table.calendar
    x = encoding.x.encode(frame, table.first)
    y = encoding.y.encode(frame)[0]
    _write_array(work, "x", x)
    _write_array(work, "y", y)
    _warn_of_missing(frame, encoding)
    if calendar is not None:
        stamps = frame[STAMP].to_numpy()
        np.save(work / STAMPS_FILE, stamps)
        if not calendar.is_regular:
            dt = np.diff(stamps, prepend=stamps[0]) / calendar.step
            dt[[a for a, _ in ranges]] = 0
            _write_array(work, "times", dt.astype(np.float32))
    pl.DataFrame({"name": table.names, "first": [a for a, _ in ranges]}).write_ipc(work / SERIES_FILE)
    season = _find_season(calendar)
    known = borders.get("train", (0.0, 1.0))
    units = [measure_season_change(y[slice(*_find_side(known, a, b))], season) for a, b in ranges]
    np.save(work / UNITS_FILE, np.stack(units))
    back, ahead = encoding.options.lookback, encoding.options.horizon
    window = f"a window of {back} + {ahead} rows"
    short = sum(b - a < back + ahead for a, b in ranges)
    if short:
        encoding.notes.warn(f"series shorter than {window}: {short} of {len(ranges)}; left out")
    known_rows = np.append(0, np.cumsum(np.isfinite(y).any(1)))  # rows before each row that have a value
    for number, (name, side) in enumerate(borders.items()):
        sides = [(a, *_find_side(side, a, b)) for a, b in ranges]
        firsts = [np.arange(max(a, low - back), max(a, high - back - ahead + 1)) for a, low, high in sides]
        starts = np.concatenate(firsts).astype(np.int64)  # the first rows of all windows whose forecast is in `side`
        starts = starts[known_rows[starts + back + ahead] > known_rows[starts + back]]  # with a value to forecast
        if not len(starts):
            label, longest = source.parts[0].label, max(b - a for a, b in ranges)
            if len(borders) == 1 and longest < back + ahead:  # other data of a trained model
                raise UserError(f"{label} has {count(longest, 'row')}, fewer than {window}; give a longer file")
            cure = "shorten lookback=... or horizon=..., or move borders=..."
            raise UserError(f"{label}: {name} has no room for {window}; {cure}")
        np.save(work / f"split.{number}.npy", starts)
        encoding.splits[name] = Split(len(starts), cache.digest(source.fingerprint, starts.tobytes()))


def _find_season(calendar: Calendar | None) -> int:
    """Return the shortest season in steps; 1 if there is none."""
    return calendar.seasons[0] if calendar is not None and calendar.seasons else 1


def measure_season_change(y: Array, season: int) -> Array:
    """Return the mean absolute change of each target (rows, K) in a season, or in a step if the rows are too few.

    It is the unit of the mean absolute scaled error (Hyndman and Koehler 2006); NaN if nothing changes.
    """
    season = season if len(y) > 2 * season else 1
    change = np.abs(y[season:] - y[:-season]).astype(np.float64)
    known = np.isfinite(change)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, change, 0).sum(0) / known.sum(0)
    return np.where(mean > 0, mean, np.nan)


def _warn_of_missing(frame: pl.DataFrame, encoding: Encoding) -> None:
    names = [name for name in encoding.x.numbers if name in frame.columns]
    rows = frame if encoding.plan.time is None else frame.filter(pl.col(encoding.plan.time).is_not_null())
    gaps = int((~np.isfinite(encoding.x.read(rows))).any(1).sum()) if names else 0
    if gaps:
        encoding.notes.warn(
            f"rows with missing values: {gaps} of {len(rows)}; the values repeat the season before, or the last value, "
            "and are marked"
        )


def _write_array(work: Path, name: str, values: Array) -> None:
    writer = RaggedWriter(work, name)
    writer.add(values, np.array([len(values)]))
    writer.close()


def _shrink_windows(options: Reading, sizes: Mapping[str, int], notes: Notes) -> Reading:
    """Shorten the default window if the table has no room for it; values set by the user stay.

    The horizon becomes at most half of the shortest split, and the window half of the training rows.

    Args:
        sizes: Rows of the longest series in each split.
    """
    back, ahead, train = options.lookback, options.horizon, sizes["train"]
    shortest = min(sizes.values())
    if back + ahead <= train and ahead <= shortest:
        return options
    if ahead == DEFAULTS.horizon:
        ahead = min(ahead, max(1, shortest // 2))
    if back == DEFAULTS.lookback:
        back = min(back, max(1, train // 2 - ahead))
    if (back, ahead) != (options.lookback, options.horizon):
        notes.say(
            f"the default window of {options.lookback} + {options.horizon} rows does not fit; {back} steps predict "
            f"{ahead} instead (change this with lookback=... and horizon=...)"
        )
    return options.model_copy(update={"lookback": back, "horizon": ahead})


def infer_calendar(column: pl.Series, stamps: Array, ranges: Ranges) -> Calendar:
    """Infer the frequency of a table whose rows are sorted by series and time.

    Args:
        column: The time stamps as they are written.
        stamps: The same in seconds.
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
