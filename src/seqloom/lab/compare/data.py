"""The data of a comparison, opened once in each process that works on it, and samples of them.

All held-out rows are scored, or a sample if scoring would take much of the budget.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, Note, Notes, Pass, Split, Task
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build

SHARES = {"valid": 0.01, "test": 0.03}  # share of the budget for scoring a split once
HIDDEN, BATCH = 128, 32  # sizes of the model that is timed
STRIDES = "strides"  # key of a source record: split -> n, if only every n-th row of the split is scored


def load_task(source: Mapping[str, Any]) -> Task:
    """Open the data that a comparison's source record names; the latest two tasks are cached."""
    return _load_task(json.dumps(source))


@lru_cache(maxsize=2)
def _load_task(source: str) -> Task:
    record = json.loads(source)
    return sample_held_out(reopen(record), record.get(STRIDES, {}))


def sample_held_out(task: Task, strides: Mapping[str, int]) -> Task:
    """Return the task with every n-th row of some splits, or the task itself if no rows are left out."""
    return HeldOutSample(task, strides) if strides else task


def whole_task(task: Task) -> Task:
    """Return the task with all of its rows."""
    return whole_task(task.task) if isinstance(task, _Sample) else task


class _Sample(Task):
    """A task with fewer rows in some splits; everything else is the same."""

    def __init__(self, task: Task, splits: Mapping[str, Split]) -> None:
        super().__init__(task.name, task.kind, task.input, task.target, splits, task.notes, task.columns)
        self.encoding, self.group, self.lookback, self.overlap = task.encoding, task.group, task.lookback, task.overlap
        self.task = task

    def encode(self, rows: Sequence[Any]) -> Batch:
        return self.task.encode(rows)

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        return self.task.decode(predictions, lengths)

    def save(self, folder: Path | str) -> None:
        self.task.save(folder)


class TrainingSample(_Sample):
    """A task with fewer training rows: the first batches of each epoch."""

    def __init__(self, task: Task, rows: int) -> None:
        train = task.splits["train"]
        size = rows if train.size is None else min(rows, train.size)
        super().__init__(task, {**task.splits, "train": replace(train, size=size)})
        self.rows = rows

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        if one.split != "train":
            yield from self.task.iterate(one, skip)
            return
        rows = 0  # batches differ in size, so that those to skip are counted, too
        for number, batch in enumerate(self.task.iterate(one, 0)):
            if rows >= self.rows:
                return
            rows += len(batch)
            if number >= skip:
                yield batch

    def count_batches(self, one: Pass) -> int | None:
        return sum(1 for _ in self.iterate(one, 0)) if one.split == "train" else self.task.count_batches(one)


class HeldOutSample(_Sample):
    """A task with every n-th row of its held-out splits.

    These splits have one fixed order, by length or by time, so that the sample is spread over short and long or early
    and late rows. The sample does not depend on the batch size.
    """

    def __init__(self, task: Task, strides: Mapping[str, int]) -> None:
        splits = dict(task.splits)
        for name, stride in strides.items():
            splits[name] = replace(splits[name], size=-(-(splits[name].size or 0) // stride))
        super().__init__(task, splits)
        self.strides = strides
        scored = " and ".join(f"{splits[name].size:,} of {task.splits[name].size:,} {name} rows" for name in strides)
        note = Note(f"{scored} are scored, to fit the budget; `seqloom evaluate` scores all")
        self.notes = Notes([*task.notes, note])
        self.overlap = max(1, -(-task.overlap // min(strides.values(), default=1)))

    def iterate(self, one: Pass, skip: int) -> Iterator[Batch]:
        for batch in self.task.iterate(self._enlarge(one), skip):
            yield batch.shard(0, self.strides.get(one.split, 1))

    def count_batches(self, one: Pass) -> int | None:
        return self.task.count_batches(self._enlarge(one))

    def _enlarge(self, one: Pass) -> Pass:
        """Return a pass with the batches of which every n-th row is used."""
        stride = self.strides.get(one.split, 1)
        return replace(one, batch=one.batch and one.batch * stride, tokens=one.tokens and one.tokens * stride)


def choose_strides(task: Task, seconds: float) -> dict[str, int]:
    """Return {split: n} for the splits of which only every n-th row should be scored.

    Args:
        seconds: The budget of the comparison.
    """
    fewest = kind_of(task).fewest_scored
    sizes = {split: task.splits[split].size or 0 for split in SHARES}
    if kind_of(task).continues_text or all(size < 2 * fewest for size in sizes.values()):
        return {}  # a text is read piece by piece, each with the state after the one before
    row_seconds = time_row(task)
    strides = {}
    for split, share in SHARES.items():
        rows = max(fewest, int(share * seconds / row_seconds))
        if sizes[split] >= 2 * rows:
            strides[split] = sizes[split] // rows
    return strides


@torch.no_grad()
def time_row(task: Task) -> float:
    """Return the seconds in which a small model scores a row of medium length."""
    batch = take_middle(task, "test", batch=BATCH)
    with use_one_thread(), torch.random.fork_rng(devices=[]):
        model = build(task, TrainSettings(model="gru", hidden=HIDDEN, letters=0)).eval()
        score_batch(model, task, batch.shard(0, len(batch)))  # the first call takes longer
        began = time.perf_counter()
        score_batch(model, task, batch)
        return (time.perf_counter() - began) / len(batch)


def take_middle(task: Task, split: str, **sizes: Any) -> Batch:  # noqa: ANN401  # as of `Task.batches`
    """Return a batch from the middle of a split; held-out splits are sorted by length."""
    return next(iter(task.batches(split, **sizes, skip=(task.count(split, **sizes) or 1) // 2)))


def score_batch(model: ForTask, task: Task, batch: Batch) -> None:
    """Do the work of scoring a batch: predictions, and translations of a text."""
    model.scores(batch)
    if kind_of(task).writes:
        model.predict(replace(batch, y=None, y_lengths=None))
