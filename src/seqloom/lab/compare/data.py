"""The data of a comparison, opened once in each process that works on it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, Task

ENDLESS_BATCHES = 16  # batches of an endless split that a baseline is fitted to


def load_task(source: Mapping[str, Any]) -> Task:
    """Open the data that a comparison's source record names; the latest two tasks are cached."""
    return _load_task(json.dumps(source))


@lru_cache(maxsize=2)
def _load_task(source: str) -> Task:
    return reopen(json.loads(source))


def iterate_split(task: Task, split: str, batch: int = 256) -> Iterator[Batch]:
    """Iterate over a split once, or over ENDLESS_BATCHES batches of an endless one."""
    batches = task.batches(split, batch=batch)
    return islice(batches, ENDLESS_BATCHES) if task.splits[split].size is None else batches


class TrainingSample(Task):
    """A task with fewer training rows; everything else is the same."""

    def __init__(self, task: Task, rows: int) -> None:
        size = task.splits["train"].size
        train = replace(task.splits["train"], size=rows if size is None else min(rows, size))
        splits = {**task.splits, "train": train}
        super().__init__(task.name, task.kind, task.input, task.target, splits, task.notes, task.columns)
        self.encoding, self.group, self.lookback, self.overlap = task.encoding, task.group, task.lookback, task.overlap
        self.task, self.rows = task, rows

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
        batches = self.task.batches(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch, skip=skip)
        count = skip * (batch or 0)
        for one in batches:
            if split == "train" and count >= self.rows:
                return
            count += len(one)
            yield one

    def count(
        self, split: str, *, batch: int | None = None, tokens: int | None = None, seed: int = 0, epoch: int = 0
    ) -> int | None:
        if split == "train" and batch:
            return -(-(self.splits["train"].size or 0) // batch)
        return self.task.count(split, batch=batch, tokens=tokens, seed=seed, epoch=epoch)

    def encode(self, rows: Sequence[Any]) -> Batch:
        return self.task.encode(rows)

    def decode(self, predictions: Tensor, lengths: Tensor | Sequence[int] | None = None) -> list[Any]:
        return self.task.decode(predictions, lengths)

    def save(self, folder: Path | str) -> None:
        self.task.save(folder)
