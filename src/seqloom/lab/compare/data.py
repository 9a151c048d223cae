"""The data of a comparison, opened once in each process that works on it, and samples of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, Note, Notes, Split, Task

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
        if split != "train":
            yield from self.task.batches(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch, skip=skip)
            return
        rows = 0  # batches differ in size, so that those to skip are counted, too
        for number, one in enumerate(self.task.batches(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch)):
            if rows >= self.rows:
                return
            rows += len(one)
            if number >= skip:
                yield one

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        if split != "train":
            return self.task.count(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch)
        return sum(1 for _ in self.batches(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch))


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
        larger = self._enlarge(split, batch, tokens)
        for one in self.task.batches(split, **larger, seed=seed, epoch=epoch, skip=skip):
            yield one.shard(0, self.strides.get(split, 1))

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        return self.task.count(split, **self._enlarge(split, batch, tokens), seed=seed, epoch=epoch)

    def _enlarge(self, split: str, batch: int | None, tokens: int | None) -> dict[str, int | None]:
        """Return the sizes of the batches of which every n-th row is used."""
        stride = self.strides.get(split, 1)
        return {"batch": batch and batch * stride, "tokens": tokens and tokens * stride}
