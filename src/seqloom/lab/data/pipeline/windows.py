"""Forecasting: a table in time, seen through windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.ragged import Ragged
from seqloom.lab.data.pipeline.saved import Saved, read_record
from seqloom.lab.data.pipeline.source import source
from seqloom.lab.data.pipeline.tables import ordered, write
from seqloom.lab.data.task import Batch, Split, Task, Values

Array = np.ndarray[Any, Any]


class WindowsTask(Task):
    """x: `lookback` steps of all inputs; y: the `horizon` steps of the targets that follow.

    Validation and test windows may look back over their border, but forecast only their own side.
    """

    def __init__(self, saved: Saved, data: Path | None = None) -> None:
        self.saved = saved
        self.lookback, self.horizon = saved.options.lookback, saved.options.horizon
        splits = {name: Split(**facts) for name, facts in saved.splits.items()} if data else {}
        target = Values(saved.plan.target, self.horizon)
        self.overlap, self.group = self.horizon, saved.plan.group
        super().__init__(saved.name, "forecast", saved.x.space, target, splits, saved.notes, saved.table)
        if data:
            self._x, self._y = Ragged.open(data, "x").values, Ragged.open(data, "y").values
            self._spans = Ragged.open(data, "times").values if saved.times else None
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
        size = self._size(split, batch, tokens)
        n = len(self._starts[split])
        order = np.random.default_rng([seed, epoch]).permutation(n) if split == "train" else np.arange(n)
        for at in range(skip * size, n, size):
            yield self._batch(split, order[at : at + size])

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return -(-len(self._starts[split]) // self._size(split, batch, tokens))

    def _size(self, split: str, batch: int | None, tokens: int | None) -> int:
        self.check(split, batch, tokens)
        return batch or max(1, (tokens or 1) // self.lookback)

    def _batch(self, split: str, positions: Array) -> Batch:
        past = self._starts[split][positions][:, None] + np.arange(self.lookback)  # (B, T) rows of the table
        future = past[:, -1:] + 1 + np.arange(self.horizon)
        spans = None if self._spans is None else torch.from_numpy(self._spans[past])
        lengths = torch.full((len(positions),), self.lookback)
        x, y = torch.from_numpy(self._x[past]), torch.from_numpy(self._y[future])
        return Batch(x, lengths, torch.from_numpy(positions), y, timespans=spans)

    def encode(self, rows: Sequence[Any]) -> Batch:
        """A row: the last steps, as a dict of columns or a list of steps; at most `lookback` are used."""
        names = self.saved.x.columns
        raw = [_past(row, names, number)[-self.lookback :] for number, row in enumerate(rows, 1)]
        lengths = np.array([len(r) for r in raw])
        values = Ragged(self.saved.x.scale.masked(np.concatenate(raw)), np.concatenate([[0], np.cumsum(lengths)]))
        x, _ = values.padded(np.arange(len(raw)))
        return Batch(torch.from_numpy(x), torch.from_numpy(lengths), torch.arange(len(raw)))

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        found: list[Any] = self.saved.y.scale.back(predictions.detach().cpu().double().numpy()).tolist()
        return found

    def save(self, folder: Path | str) -> None:
        self.saved.save(folder)

    def over(self, path: Any) -> Task:
        """All windows of another table, scaled as this one."""
        found = source(path, self.saved.options, self.notes)
        key = cache.digest(found.fingerprint, repr(self.saved.x.state()), self.saved.options.model_dump_json(), "over")

        def build(work: Path) -> None:
            old = self.saved
            fresh = Saved(found.name, old.plan, old.options, old.x, old.y, old.times, old.table)
            write(found, fresh, {"test": (0.0, 1.0)}, work)
            fresh.save(work)

        place = cache.entry(f"task-{key}", build, self.notes)
        return WindowsTask(Saved.load(read_record(place)), place)

    def read(self, path: Any, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """The end of the table, or of each group of it: what a forecast starts from."""
        found = source(path, self.saved.options, self.notes)
        frame, ranges = ordered(found, self.saved.plan)
        names, last = self.saved.x.columns, [n for n in (self.group, self.saved.plan.time) if n in frame.columns]
        rows = [
            {n: frame[n][b - 1] for n in last} | {n: frame[n][max(a, b - self.lookback) : b].to_list() for n in names}
            for a, b in ranges
        ]
        for start in range(0, len(rows), chunk):
            yield rows[start : start + chunk]


def _past(row: Any, names: Sequence[str], number: int) -> Array:
    """(T, D): what is given of one series, a column for each name."""
    if isinstance(row, Mapping):
        absent = [name for name in names if name not in row]
        if absent:
            raise UserError(f"row {number}: no column {absent[0]!r}; it has {', '.join(map(str, row)) or 'none'}")
        columns = [np.atleast_1d(np.asarray(row[name], dtype=np.float64)) for name in names]
        steps = {name: len(column) for name, column in zip(names, columns, strict=True)}
        if len(set(steps.values())) > 1:
            told = ", ".join(f"{n} of {name!r}" for name, n in steps.items())
            raise UserError(f"row {number}: columns of different lengths, {told}; give each as many steps")
        return np.stack(columns, 1)
    table = np.asarray(row, dtype=np.float64)
    if table.ndim == 1 and (len(names) == 1 or not len(table)):
        table = table.reshape(-1, len(names))
    if table.ndim != 2 or table.shape[1] != len(names):
        told = f"the columns {', '.join(names)} in this order"
        raise UserError(f"row {number}: shape {table.shape}; give (steps, {len(names)}), {told}")
    return table
