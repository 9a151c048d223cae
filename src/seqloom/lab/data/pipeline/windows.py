"""Forecasting: windows over a table in time.

The table is sorted by series and time, put on a regular grid, split by time and scaled on its training rows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.calendar import Calendar
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.pipeline.encoding import Encoding, FileTask
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.pipeline.tables import SERIES_FILE, STAMPS_FILE, UNITS_FILE, TimeTable, read_table, write_windows
from seqloom.lab.data.task import Batch, DataSource, Notes, Pass, Values

Array = np.ndarray[Any, Any]
MOST_LISTED = 5  # values that a warning names


class WindowsTask(FileTask):
    """Windows over a table: x is `lookback` steps of all inputs, y the `horizon` steps of the targets that follow.

    Validation and test windows may look back across their border, but forecast only steps on their own side.
    """

    def __init__(self, encoding: Encoding, data: Path | None = None) -> None:
        if isinstance(encoding.x, SeriesCoder):  # a run of an earlier version
            encoding.x = TableCoder(encoding.x.columns, scale=encoding.x.scale.state())
        self.horizon, space = encoding.options.horizon, encoding.x.space
        super().__init__(encoding, space, Values(encoding.plan.target, self.horizon), data)
        self.lookback = self.steps = encoding.options.lookback
        self.overlap, self.group = self.horizon, encoding.plan.group
        self.calendar = encoding.times if isinstance(encoding.times, Calendar) else None
        self._known = [space.names.index(name) for name in space.known]
        if data:
            self._x, self._y = Ragged.open(data, "x").values, Ragged.open(data, "y").values
            is_irregular = self.calendar is not None and not self.calendar.is_regular
            self._spans = Ragged.open(data, "times").values if is_irregular else None
            self._starts = {name: np.load(data / f"split.{i}.npy") for i, name in enumerate(self.splits)}
            self._stamps = np.load(data / STAMPS_FILE) if self.calendar is not None else None
            series = pl.read_ipc(data / SERIES_FILE)
            self.series_names: list[str] = series["name"].to_list()  # in the order of `Batch.series`
            self._first = series["first"].to_numpy()
            self.units: Array = np.load(data / UNITS_FILE)  # (series, K) mean change in a season, for the MASE
            self.overlap = min(self.horizon, self._find_longest_run())

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        size, n = self.choose_batch_size(one), len(self._starts[one.split])
        order = np.random.default_rng([one.seed, one.epoch]).permutation(n) if one.split == "train" else np.arange(n)
        for at in range(skip * size, n, size):
            yield self.get_windows(one.split, order[at : at + size])

    def get_windows(self, split: str, positions: Array) -> Batch:
        """Return some windows of a split."""
        starts = self._starts[split][positions]
        past = starts[:, None] + np.arange(self.lookback)  # (B, T) rows of the table
        ahead = past[:, -1:] + 1 + np.arange(self.horizon)
        spans = None if self._spans is None else torch.from_numpy(self._spans[past])
        lengths = torch.full((len(positions),), self.lookback)
        x, y = torch.from_numpy(self._x[past]), torch.from_numpy(self._y[ahead])
        future = torch.from_numpy(self._x[ahead[:, :, None], self._known]) if self._known else None
        series = torch.from_numpy(self._find_series(starts))
        return Batch(x, lengths, torch.from_numpy(positions), y, timespans=spans, future=future, series=series)

    def list_earlier_origins(self, count: int) -> list[WindowsTask]:
        """Return copies of the task that validate on earlier windows and train on those before them.

        Each moves back by as many windows of each series as the task validates on.

        Args:
            count: The number of copies; fewer are returned if less than a third of the training windows would be left.
        """
        train, valid = self._starts["train"], self._starts["valid"]
        of_train, of_valid = self._find_series(train), self._find_series(valid)
        tasks = []
        for k in range(1, count + 1):
            parts: dict[str, list[Array]] = {"train": [], "valid": []}
            for series in np.unique(of_train):
                own, size = train[of_train == series], int((of_valid == series).sum())
                held = own[max(0, len(own) - k * size) : max(0, len(own) - (k - 1) * size)]
                parts["valid"].append(held)
                parts["train"].append(own[own <= held[0] - self.horizon] if len(held) else own)
            starts = {name: np.concatenate(part) for name, part in parts.items()}
            if len(starts["train"]) < len(train) / 3 or not len(starts["valid"]):
                break
            one = copy.copy(self)
            one._starts = self._starts | starts
            one.splits = {name: replace(split, size=len(one._starts[name])) for name, split in self.splits.items()}
            tasks.append(one)
        return tasks

    def _find_longest_run(self) -> int:
        """Return the largest number of held-out windows of one series; windows of different series do not overlap."""
        series = [self._find_series(starts) for split, starts in self._starts.items() if split != "train"]
        return max([1, *(int(np.bincount(numbers).max()) for numbers in series if len(numbers))])

    def _find_series(self, starts: Array) -> Array:
        """Return the index of the series of each window."""
        return np.searchsorted(self._first, starts, side="right") - 1

    def list_window_dates(self, split: str, position: int) -> list[str | float] | None:
        """Return the dates of the past and of the forecast of one window; None without time stamps."""
        if self._stamps is None or self.calendar is None:
            return None
        start = int(self._starts[split][position])
        return self.calendar.format(self._stamps[start : start + self.lookback + self.horizon])

    def list_dates(self, row: object) -> list[str | float] | None:
        """Return the dates of the forecast for a new row; None if the row has no time stamp."""
        time = self.encoding.plan.time
        if self.calendar is None or not isinstance(row, Mapping) or row.get(time) is None:
            return None
        stamp = row[time]
        if isinstance(stamp, (list, tuple)):
            if not stamp or stamp[-1] is None:
                return None
            stamp = stamp[min(len(stamp), len(row[self.encoding.plan.target[0]])) - 1]
        return self.calendar.follow(stamp, self.horizon)

    def encode(self, rows: Sequence[Any]) -> Batch:
        """Encode the last steps of each row, a dict of columns or a list of steps; at most `lookback` are used.

        Columns whose future is known have `horizon` more steps than the others.
        """
        coder, ahead = self.encoding.x, self.horizon if self._known else 0
        frames = [self._read_row(row, number) for number, row in enumerate(rows, 1)]
        sizes = np.array([len(frame) for frame in frames])
        ends = np.cumsum(sizes)
        encoded = coder.encode(pl.concat(frames), np.repeat(ends - sizes, sizes))
        pieces = np.split(encoded, ends[:-1])
        lengths = np.minimum(sizes - ahead, self.lookback)
        pasts = [piece[len(piece) - ahead - n : len(piece) - ahead] for piece, n in zip(pieces, lengths, strict=True)]
        x, _ = Ragged.from_lengths(np.concatenate(pasts), lengths).pad(np.arange(len(rows)))
        future = np.stack([piece[len(piece) - ahead :][:, self._known] for piece in pieces]) if self._known else None
        return Batch(
            torch.from_numpy(x),
            torch.from_numpy(lengths),
            torch.arange(len(rows)),
            future=None if future is None else torch.from_numpy(future),
        )

    def _read_row(self, row: Mapping[str, Any] | Sequence[Any] | Array, number: int) -> pl.DataFrame:
        """Read one series as a frame; if columns are known ahead, the others are null in the last steps."""
        coder, plan = self.encoding.x, self.encoding.plan
        if not isinstance(row, Mapping):
            return _read_steps(row, coder, number)
        absent = [name for name in coder.columns if name not in row]
        if absent:
            raise UserError(f"row {number}: no column {absent[0]!r}; it has {', '.join(map(str, row)) or 'none'}")
        columns = {name: _to_list(row[name]) for name in coder.columns}
        steps = len(columns[plan.target[0]])
        expected = {name: steps + (self.horizon if name in plan.known else 0) for name in columns}
        if wrong := [name for name in columns if len(columns[name]) != expected[name]]:
            if wrong[0] in plan.known:
                raise UserError(
                    f"row {number}: {wrong[0]!r} has {count(len(columns[wrong[0]]), 'step')}; its future is known, so "
                    f"give {steps} and {self.horizon} more"
                )
            lengths = ", ".join(f"{len(column)} of {name!r}" for name, column in columns.items())
            raise UserError(f"row {number}: columns of different lengths, {lengths}; give each as many steps")
        longest = max(expected.values())
        try:
            types = {name: pl.String if name in coder.categories else pl.Float64 for name in columns}
            padded = {name: column + [None] * (longest - len(column)) for name, column in columns.items()}
            return pl.DataFrame([pl.Series(name, padded[name], types[name], strict=False) for name in columns])
        except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
            raise UserError(f"row {number}: {str(error).splitlines()[0]}; give numbers, as in training") from None

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        values: list[Any] = self.encoding.y.scale.invert(predictions.detach().cpu().double().numpy()).tolist()
        return values

    def build_other(self, source: Source, encoding: Encoding, work: Path) -> None:
        table = read_table(source, encoding.plan, self.calendar, encoding.notes)
        encoding.times = table.calendar
        write_windows(source, table, encoding, {"test": (0.0, 1.0)}, work)

    def read_rows(self, path: DataSource, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """Yield the end of each series of a table, from which a forecast starts: its last row with a target.

        Later rows hold the future of the columns that are known.
        """
        source = read_source(path, self.encoding.options, self.notes)
        table = read_table(source, self.encoding.plan, self.calendar, self.notes)
        self.calendar = table.calendar
        rows = [self._read_end(table, number, source.parts[0].label) for number in range(len(table.ranges))]
        for start in range(0, len(rows), chunk):
            yield rows[start : start + chunk]

    def _read_end(self, table: TimeTable, number: int, label: str) -> dict[str, Any]:
        plan, frame, (a, b) = self.encoding.plan, table.frame, table.ranges[number]
        has_target = np.isfinite(self.encoding.y.encode(frame[a:b])[0]).any(1)
        where = f"{label}, series {table.names[number]!r}" if table.names[number] else label
        if not has_target.any():
            raise UserError(f"{where}: {plan.target[0]!r} has no value, so there is no past to forecast from")
        end = a + int(np.flatnonzero(has_target)[-1]) + 1
        start, given = max(a, end - self.lookback), b - end
        if self._known and given < self.horizon:
            raise UserError(
                f"{where}: after the last {plan.target[0]!r} the file has {count(given, 'row')} with "
                f"{', '.join(plan.known)}; the forecast needs {self.horizon}, so add rows with {plan.target[0]!r} empty"
            )
        last = [n for n in (self.group, plan.time) if n in frame.columns]
        ends = {name: end + (self.horizon if name in plan.known else 0) for name in self.encoding.x.columns}
        return {n: frame[n][end - 1] for n in last} | {n: frame[n][start:stop].to_list() for n, stop in ends.items()}

    def count_steps(self, row: Mapping[str, Any] | Sequence[Any]) -> int:
        """Return the number of steps with a target in a row to forecast from."""
        return len(_to_list(row.get(self.encoding.plan.target[0], ())) if isinstance(row, Mapping) else row)

    def check_new_rows(self, rows: Sequence[Any], notes: Notes) -> None:
        """Warn about rows to forecast from with names unknown in training, or missing values in known columns."""
        for row in [row for row in rows if isinstance(row, dict)]:
            for name, values in self.encoding.x.categories.items():
                unknown = sorted({str(v) for v in _to_list(row.get(name, ())) if v is not None} - set(values))
                if unknown:
                    some = ", ".join(map(repr, unknown[:MOST_LISTED]))
                    notes.warn(f"{name!r} has values that the model does not know ({some}); it reads them as missing")
            for name in self.encoding.plan.known:
                future = pl.Series(_to_list(row.get(name, ()))[-self.horizon :], strict=False)
                if future.is_null().any() or (future.dtype.is_float() and future.is_nan().any()):
                    filled = "are read as missing" if name in self.encoding.x.categories else "repeat earlier values"
                    notes.warn(f"{name!r} has steps to forecast without a value; they {filled}")


def describe_short(steps: Sequence[int], series: int, lookback: int) -> str:
    """Describe what a model does with series that have fewer steps than the windows it was trained on."""
    if series == 1:
        subject = f"the past has {count(steps[0], 'step')}, and the model was trained on {lookback}"
    else:
        verb = "has" if len(steps) == 1 else "have"
        subject = (
            f"{len(steps):,} of {series:,} series {verb} fewer than the {lookback} steps that the model was trained on "
            f"(the shortest has {min(steps)})"
        )
    return f"{subject}; it reads the steps that exist, and its errors may be larger than its intervals say"


def _to_list(column: object) -> list[Any]:
    if isinstance(column, (str, bytes)) or not hasattr(column, "__iter__"):
        return [column]
    return column.tolist() if hasattr(column, "tolist") else list(column)


def _read_steps(row: Sequence[Any] | Array, coder: TableCoder, number: int) -> pl.DataFrame:
    """Read steps (T, columns), or (T,) for a single column, as a frame."""
    names = coder.columns
    if coder.known or coder.categories:
        raise UserError(f"row {number}: name the columns {', '.join(names)}: give a dict of lists")
    table = np.asarray(row, dtype=np.float64)
    if table.ndim == 1 and (len(names) == 1 or not len(table)):
        table = table.reshape(-1, len(names))
    if table.ndim != 2 or table.shape[1] != len(names):
        expected = f"(steps, {len(names)}), the columns {', '.join(names)} in this order"
        raise UserError(f"row {number}: shape {table.shape}; give {expected}")
    return pl.DataFrame({name: table[:, k] for k, name in enumerate(names)})
