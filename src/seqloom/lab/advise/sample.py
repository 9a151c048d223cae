"""Some examples of a task, in memory: what all facts are taken from. The test split is never looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.errors import UserError
from seqloom.lab.data.task import IGNORE, PAD, Batch, Task

Array = np.ndarray[Any, Any]
ROWS, STEPS = 4_000, 800_000  # at most so many examples and time steps
GROUP = 8  # examples that are drawn together: those of like length stand side by side
HELD = 0.3  # share that is held out, to score on
PADDING = {"tag": IGNORE, "generate": IGNORE, "translate": PAD, "transcribe": PAD}


@dataclass(frozen=True, eq=False)
class Example:
    """One sequence without padding, its target as the task has it, and the time between steps where it is given."""

    x: Tensor
    y: Tensor
    spans: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """Examples in a random order; the first `fit` are to learn from, the others to score on."""

    task: Task
    examples: Sequence[Example]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def fit(self) -> int:
        return len(self) - max(1, int(len(self) * HELD))

    @cached_property
    def lengths(self) -> Array:
        return np.array([len(e.x) for e in self.examples])

    @property
    def labels(self) -> Array:
        """(N,) of a task that gives every sequence one class."""
        return np.array([int(e.y) for e in self.examples])

    def flat(self) -> tuple[Array, Array]:
        """All steps one after another, (sum of lengths, ...), and where each example starts."""
        values = torch.cat([e.x for e in self.examples]).numpy()
        return values, np.concatenate([[0], np.cumsum(self.lengths)[:-1]])

    def batch(self, rows: Sequence[int]) -> Batch:
        """These examples, padded as the task would."""
        some = [self.examples[row] for row in rows]
        x = pad_sequence([e.x for e in some], batch_first=True, padding_value=0)
        lengths = torch.tensor([len(e.x) for e in some])
        fill = PADDING.get(self.task.kind)
        if fill is None:
            y, y_lengths = torch.stack([e.y for e in some]), None
        else:
            y = pad_sequence([e.y for e in some], batch_first=True, padding_value=fill)
            y_lengths = torch.tensor([len(e.y) for e in some]) if fill == PAD else None
        spans = [e.spans for e in some if e.spans is not None]
        timespans = pad_sequence(spans, batch_first=True) if len(spans) == len(some) else None
        return Batch(x, lengths, torch.tensor(list(rows)), y, y_lengths, timespans)


def sample(task: Task, rows: int = ROWS, steps: int = STEPS, seed: int = 0) -> Sample:
    """Drawn from the training and validation splits, whatever the kind of task."""
    found: list[Example] = []
    for split in [name for name in ("valid", "train") if name in task.splits]:
        most = rows if split == "train" else rows // 8  # what validates is a small part, and is often sorted
        taken = 0
        for batch in task.batches(split, batch=GROUP, seed=seed):
            part = _examples(task, batch)
            found += part
            taken += sum(len(e.x) for e in part)
            if len(found) >= most or taken >= steps:
                break
    if len(found) < 2:
        raise UserError(f"task {task.name!r} has {len(found)} examples to look at; advice needs at least 2")
    order = np.random.default_rng(seed).permutation(len(found))
    return Sample(task, [found[i] for i in order])


def _examples(task: Task, batch: Batch) -> list[Example]:
    """The rows of a batch that have both an input and a target."""
    assert batch.y is not None
    some = []
    for b, n in enumerate(batch.lengths.tolist()):
        y = batch.y[b]
        if task.kind in ("tag", "generate"):
            y = y[:n]
        elif batch.y_lengths is not None:
            y = y[: int(batch.y_lengths[b])]
        known = bool((y >= 0).any()) if not y.is_floating_point() else bool(y.isfinite().any())
        if n and known:
            some.append(Example(batch.x[b, :n], y, None if batch.timespans is None else batch.timespans[b, :n]))
    return some
