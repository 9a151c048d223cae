"""Forecasting: windows over a table in time.

The table is sorted by group and time, split by time and scaled on its training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.scale import StandardScale
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.times import TimesCoder, parse_stamps
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.encoding import Encoding
from seqloom.lab.data.pipeline.plan import TaskPlan
from seqloom.lab.data.pipeline.ragged import Ragged, Writer
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.task import Batch, DataSource, Notes, Split, Task, Values, read_record

Array = np.ndarray[Any, Any]
DEFAULTS = Reading()
MONTH = 30 * 24 * 3600  # seconds in a month of the usual ETT borders
SHARES = (0.7, 0.1, 0.2)  # of train, valid and test
TOLERANCE = 0.15  # time stamps are regular if no interval differs by more: months differ by a day or two
Borders = dict[str, tuple[float, float]]  # split -> start and end, as shares of the rows or as rows
Ranges = list[tuple[int, int]]  # first row and end of each series


class WindowsTask(Task):
    """Windows over a table: x is `lookback` steps of all inputs, y the `horizon` steps of the targets that follow.

    Validation and test windows may look back across their border, but forecast only steps on their own side.
    """

    encoding: Encoding

    def __init__(self, encoding: Encoding, data: Path | None = None) -> None:
        self.encoding = encoding
        self.lookback, self.horizon = encoding.options.lookback, encoding.options.horizon
        splits = encoding.splits if data else {}
        target = Values(encoding.plan.target, self.horizon)
        self.overlap, self.group = self.horizon, encoding.plan.group
        super().__init__(encoding.name, "forecast", encoding.x.space, target, splits, encoding.notes, encoding.columns)
        if data:
            self._x, self._y = Ragged.open(data, "x").values, Ragged.open(data, "y").values
            self._spans = Ragged.open(data, "times").values if encoding.times else None
            self._starts = {name: np.load(data / f"split.{i}.npy") for i, name in enumerate(splits)}

    def batches(
        self,
        split: str,
        *,
        batch: int | None = None,
        tokens: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        skip: int = 0,
    ) -> Iterator[Batch]:
        size = self.choose_batch_size(split, batch, tokens, self.lookback)
        n = len(self._starts[split])
        order = np.random.default_rng([seed, epoch]).permutation(n) if split == "train" else np.arange(n)
        for at in range(skip * size, n, size):
            yield self._batch(split, order[at : at + size])

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return -(-len(self._starts[split]) // self.choose_batch_size(split, batch, tokens, self.lookback))

    def _batch(self, split: str, positions: Array) -> Batch:
        past = self._starts[split][positions][:, None] + np.arange(self.lookback)  # (B, T) rows of the table
        future = past[:, -1:] + 1 + np.arange(self.horizon)
        spans = None if self._spans is None else torch.from_numpy(self._spans[past])
        lengths = torch.full((len(positions),), self.lookback)
        x, y = torch.from_numpy(self._x[past]), torch.from_numpy(self._y[future])
        return Batch(x, lengths, torch.from_numpy(positions), y, timespans=spans)

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Encode the last steps of each row, a dict of columns or a list of steps; at most `lookback` are used."""
        coder = self.encoding.x
        raw = [_read_past(row, coder.columns, number)[-self.lookback :] for number, row in enumerate(rows, 1)]
        lengths = np.array([len(r) for r in raw])
        x, _ = Ragged.from_lengths(coder.scale.encode(np.concatenate(raw)), lengths).pad(np.arange(len(raw)))
        return Batch(torch.from_numpy(x), torch.from_numpy(lengths), torch.arange(len(raw)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        values: list[Any] = self.encoding.y.scale.invert(predictions.detach().cpu().double().numpy()).tolist()
        return values

    def save(self, folder: Path | str) -> None:
        self.encoding.save(folder)

    def open_file(self, path: DataSource) -> Task:
        """Open all windows of another table, with the scale of this one."""
        options = self.encoding.options
        source = read_source(path, options, self.notes)
        key = cache.digest(source.fingerprint, repr(self.encoding.x.state()), options.model_dump_json(), "over")

        def build(work: Path) -> None:
            copy = self.encoding.copy_for(source.name)
            _write(source, copy, {"test": (0.0, 1.0)}, work)
            copy.save(work)

        place = cache.find_or_build(f"task-{key}", build, self.notes)
        return WindowsTask(Encoding.load(read_record(place)), place)

    def read_rows(self, path: DataSource, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """Yield the end of the table, or of each of its groups, from which a forecast starts."""
        source = read_source(path, self.encoding.options, self.notes)
        frame, ranges = _sort_rows(source, self.encoding.plan)
        names = self.encoding.x.columns
        last = [n for n in (self.group, self.encoding.plan.time) if n in frame.columns]
        rows = [
            {n: frame[n][b - 1] for n in last} | {n: frame[n][max(a, b - self.lookback) : b].to_list() for n in names}
            for a, b in ranges
        ]
        for start in range(0, len(rows), chunk):
            yield rows[start : start + chunk]


def _read_past(row: Mapping[str, Any] | Sequence[Any] | Array, names: Sequence[str], number: int) -> Array:
    """Read the steps of one series as (T, D), one column for each name."""
    if isinstance(row, Mapping):
        absent = [name for name in names if name not in row]
        if absent:
            raise UserError(f"row {number}: no column {absent[0]!r}; it has {', '.join(map(str, row)) or 'none'}")
        columns = [np.atleast_1d(np.asarray(row[name], dtype=np.float64)) for name in names]
        steps = {name: len(column) for name, column in zip(names, columns, strict=True)}
        if len(set(steps.values())) > 1:
            lengths = ", ".join(f"{n} of {name!r}" for name, n in steps.items())
            raise UserError(f"row {number}: columns of different lengths, {lengths}; give each as many steps")
        return np.stack(columns, 1)
    table = np.asarray(row, dtype=np.float64)
    if table.ndim == 1 and (len(names) == 1 or not len(table)):
        table = table.reshape(-1, len(names))
    if table.ndim != 2 or table.shape[1] != len(names):
        expected = f"(steps, {len(names)}), the columns {', '.join(names)} in this order"
        raise UserError(f"row {number}: shape {table.shape}; give {expected}")
    return table


def build_windows(source: Source, encoding: Encoding, work: Path) -> None:
    """Fit the scales on the training rows of a table, then write the table and its windows."""
    plan = encoding.plan
    encoding.x = SeriesCoder(plan.input, width=1 if len(plan.input) == 1 else 0)
    encoding.y = ValuesCoder(plan.target)
    if encoding.options.rows is not None:
        source = _keep_latest(source, plan, encoding.options.rows, work, encoding.notes)
    frame, ranges = _sort_rows(source, plan)
    borders = _find_borders(frame, ranges, encoding, source)
    longest = max(b - a for a, b in ranges)
    sizes = {name: b - a for name, (a, b) in ((name, _find_side(side, 0, longest)) for name, side in borders.items())}
    encoding.options = _shrink_windows(encoding.options, sizes, encoding.notes)
    train = np.concatenate([np.arange(*_find_side(borders["train"], a, b)) for a, b in ranges])
    encoding.x.scale = StandardScale.fit([_to_matrix(frame, plan.input)[train]])
    encoding.y.scale = StandardScale.fit([_to_matrix(frame, plan.target)[train]])
    if plan.time:
        encoding.times = _make_times_coder(frame, ranges, encoding)
    encoding.notes.say("errors are in units of each column's standard deviation in training")
    _write(source, encoding, borders, work)


def _keep_latest(source: Source, plan: TaskPlan, rows: int, work: Path, notes: Notes) -> Source:
    """Write the latest rows of each series as a table of their own."""
    frame, ranges = _sort_rows(source, plan)
    chosen = np.concatenate([np.arange(max(a, b - rows), b) for a, b in ranges])
    if len(chosen) == len(frame):
        return source
    notes.say(f"the latest {len(chosen):,} of {len(frame):,} rows are used")
    table = work / "latest.arrow"
    frame[chosen].drop("_t", strict=False).write_ipc(table)
    return replace(source, parts=(replace(source.parts[0], table=table, rows=len(chosen)),))


def _sort_rows(source: Source, plan: TaskPlan) -> tuple[pl.DataFrame, Ranges]:
    """Return the rows by group and time, and the range of rows of every group."""
    present = source.frame().collect_schema().names()
    group = plan.group if plan.group in present else None  # new rows may be one series
    names = [n for n in (group, plan.time) if n]
    missing = [n for n in (*plan.input, *([plan.time] if plan.time else [])) if n not in present]
    if missing:
        raise UserError(f"{source.parts[0].label}: no column {missing[0]!r}, which the training data have; add it")
    chosen = [n for n in dict.fromkeys([*names, *plan.input, *plan.target]) if n in present]
    frame = source.frame().select(chosen).collect()
    if plan.time:
        frame = frame.with_columns(pl.Series("_t", parse_stamps(frame[plan.time], source.place)))
    keys = [n for n in (group, "_t" if plan.time else None) if n]
    frame = frame.sort(keys, maintain_order=True) if keys else frame
    sizes = frame.group_by(group, maintain_order=True).len()["len"].to_list() if group else [len(frame)]
    ends = np.cumsum(sizes).tolist()
    return frame, list(zip([0, *ends[:-1]], ends, strict=True))


def _find_borders(frame: pl.DataFrame, ranges: Ranges, encoding: Encoding, source: Source) -> Borders:
    """Turn the option `borders` into a start and an end for each split."""
    label, option = source.parts[0].label, encoding.options.borders
    if option == "ett":
        if not encoding.plan.time:
            raise UserError(f"{label}: borders=ett needs time stamps; name their column with time=...")
        start, end = ranges[0]
        tick = float(np.median(np.diff(frame["_t"].to_numpy()[start:end])))
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


def _to_matrix(frame: pl.DataFrame, names: tuple[str, ...]) -> Array:
    return frame.select(pl.col(n).cast(pl.Float64).fill_null(float("nan")) for n in names).to_numpy()


def _make_times_coder(frame: pl.DataFrame, ranges: Ranges, encoding: Encoding) -> TimesCoder | None:
    """Make a coder of time stamps, or None if they are regular."""
    spans = np.concatenate([np.diff(frame["_t"].to_numpy()[a:b]) for a, b in ranges])
    coder = TimesCoder(encoding.plan.time or "")
    coder.tick = float(np.median(spans)) or 1.0
    if len(spans) and np.abs(spans / coder.tick - 1).max() < TOLERANCE:
        return None
    encoding.notes.say(
        f"time stamps {encoding.plan.time!r} are irregular; batches contain the time since the previous step"
    )
    return coder


def _write(source: Source, encoding: Encoding, borders: Borders, work: Path) -> None:
    """Write the scaled table and the first row of every window of each split."""
    frame, ranges = _sort_rows(source, encoding.plan)
    x, y = _to_matrix(frame, encoding.plan.input), _to_matrix(frame, encoding.plan.target)
    _write_array(work, "x", encoding.x.scale.encode(x))
    _write_array(work, "y", encoding.y.scale.standardise(y).astype(np.float32))
    gaps = int((~np.isfinite(x)).any(1).sum())
    if gaps:
        encoding.notes.warn(f"rows with missing values: {gaps} of {len(x)}; the values are replaced by 0 and marked")
    if encoding.times is not None:
        dt = np.diff(frame["_t"].to_numpy(), prepend=frame["_t"][0]) / encoding.times.tick
        dt[[a for a, _ in ranges]] = 0
        _write_array(work, "times", dt.astype(np.float32))
    back, ahead = encoding.options.lookback, encoding.options.horizon
    window = f"a window of {back} + {ahead} rows"
    short = sum(b - a < back + ahead for a, b in ranges)
    if short:
        encoding.notes.warn(f"series shorter than {window}: {short} of {len(ranges)}; left out")
    for number, (name, side) in enumerate(borders.items()):
        starts = np.concatenate([_list_starts(_find_side(side, a, b), a, back, ahead) for a, b in ranges])
        if not len(starts):
            cure = "shorten lookback=... or horizon=..., or move borders=..."
            raise UserError(f"{source.parts[0].label}: {name} has no room for {window}; {cure}")
        np.save(work / f"split.{number}.npy", starts)
        encoding.splits[name] = Split(len(starts), cache.digest(source.fingerprint, starts.tobytes()))


def _list_starts(side: tuple[int, int], first: int, back: int, ahead: int) -> Array:
    """List the first rows of all windows whose forecast is within `side`."""
    return np.arange(max(first, side[0] - back), max(first, side[1] - back - ahead + 1), dtype=np.int64)


def _write_array(work: Path, name: str, values: Array) -> None:
    writer = Writer(work, name)
    writer.add(values, np.array([len(values)]))
    writer.close()


def _shrink_windows(options: Reading, sizes: Mapping[str, int], notes: Notes) -> Reading:
    """Shorten the default window if the table has no room for it; values set by the user stay.

    The horizon becomes at most half of the shortest split, and the window half of the training rows.

    Args:
        options: With `lookback` and `horizon`.
        sizes: Rows of the longest series in each split.
        notes: Receives a remark if the window is changed.
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
