"""A sample of a task in memory, from which all facts are computed. The test split is never used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.task import PAD, Batch, Task
from seqloom.lab.kinds.registry import kind_of

Array = np.ndarray[Any, Any]
MOST_EXAMPLES, MOST_STEPS = 4_000, 800_000  # most examples and time steps
GROUP = 8  # examples that are read together; tasks batch examples of similar length
HELD_OUT = 0.3  # share of the examples for scoring


@dataclass(frozen=True, eq=False)
class SampleRow:
    """One sequence without padding, its target, and further inputs of the task.

    The further inputs are the times between steps, the letters (T, C) of words, or the known future (S, F) of a
    forecast.
    """

    x: Tensor
    y: Tensor
    spans: Tensor | None = None
    letters: Tensor | None = None
    future: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Sample:
    """Examples in random order; the first `fit` are for fitting, the others for scoring."""

    task: Task
    examples: Sequence[SampleRow]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def fit(self) -> int:
        return len(self) - max(1, int(len(self) * HELD_OUT))

    @cached_property
    def lengths(self) -> Array:
        return np.array([len(e.x) for e in self.examples])

    @property
    def labels(self) -> Array:
        """The class of each sequence, (N,)."""
        return np.array([int(e.y) for e in self.examples])

    def flat(self) -> tuple[Array, Array]:
        """Return all steps concatenated, (sum of lengths, ...), and the start of each example."""
        values = torch.cat([e.x for e in self.examples]).numpy()
        return values, np.concatenate([[0], np.cumsum(self.lengths)[:-1]])

    def batch(self, rows: Sequence[int]) -> Batch:
        """Build a batch of some examples, padded as the task does."""
        examples = [self.examples[row] for row in rows]
        x = pad_sequence([e.x for e in examples], batch_first=True, padding_value=0)
        lengths = torch.tensor([len(e.x) for e in examples])
        fill = kind_of(self.task).padding
        if fill is None:
            y, y_lengths = torch.stack([e.y for e in examples]), None
        else:
            y = pad_sequence([e.y for e in examples], batch_first=True, padding_value=fill)
            y_lengths = torch.tensor([len(e.y) for e in examples]) if fill == PAD else None
        spans = [e.spans for e in examples if e.spans is not None]
        timespans = pad_sequence(spans, batch_first=True) if len(spans) == len(examples) else None
        spelled = [e.letters for e in examples if e.letters is not None]
        letters = _pad_letters(spelled) if len(spelled) == len(examples) else None
        known = [e.future for e in examples if e.future is not None]
        future = torch.stack(known) if len(known) == len(examples) else None
        return Batch(x, lengths, torch.tensor(list(rows)), y, y_lengths, timespans, letters, future)


def _pad_letters(examples: list[Tensor]) -> Tensor:
    """Pad letters (T, C) of each example to (B, T, C)."""
    C = max(e.shape[1] for e in examples)
    return pad_sequence([F.pad(e, (0, C - e.shape[1])) for e in examples], batch_first=True)


def draw_sample(task: Task) -> Sample:
    """Draw examples from the training and validation splits.

    Raises:
        UserError: if there are fewer than two examples.
    """
    if kind_of(task).is_per_row and kind_of(task).is_per_step(task):
        raise UserError("there is no advice for several labels at each step; `seqloom compare` tries the models")
    examples: list[SampleRow] = []
    for split in [name for name in ("valid", "train") if name in task.splits]:
        most = MOST_EXAMPLES if split == "train" else MOST_EXAMPLES // 8  # validation splits are small and often sorted
        steps_drawn = 0
        for batch in task.batches(split, batch=GROUP):
            part = _examples(task, batch)
            examples += part
            steps_drawn += sum(len(e.x) for e in part)
            if len(examples) >= most or steps_drawn >= MOST_STEPS:
                break
    if len(examples) < 2:
        raise UserError(f"task {task.name!r} has {count(len(examples), 'example')} to look at; advice needs at least 2")
    order = np.random.default_rng(0).permutation(len(examples))
    return Sample(task, [examples[i] for i in order])


def _examples(task: Task, batch: Batch) -> list[SampleRow]:
    """Return the rows of a batch that have both an input and a target."""
    assert batch.y is not None
    examples = []
    for b, n in enumerate(batch.lengths.tolist()):
        y = batch.y[b]
        if kind_of(task).is_per_step(task):
            y = y[:n]
        elif batch.y_lengths is not None:
            y = y[: int(batch.y_lengths[b])]
        known = bool((y >= 0).any()) if not y.is_floating_point() else bool(y.isfinite().any())
        if n and known:
            spans, letters = (None if t is None else t[b, :n] for t in (batch.timespans, batch.letters))
            future = None if batch.future is None else batch.future[b]
            examples.append(SampleRow(batch.x[b, :n], y, spans, letters, future))
    return examples
