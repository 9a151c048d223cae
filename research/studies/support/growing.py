"""Training sequences whose labelled part grows, so that a model meets short ones first."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.support.trials import Tensors
from seqloom.lab.data.task import IGNORE

GROWING = 0.6  # share of the steps in which the training length grows
AHEAD = 50  # batches drawn at once

Generate = Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]  # generator, rows, steps -> x and y


class GrowingBatches:
    """Batches of `length` steps in which labels past the current training length are ignored.

    The training length grows from 1 to `length` in `growing` steps, in proportion to the share of them that is done to
    the power of `power`: with 2 it stays short for longer. growing=0: all labels are asked from the first step on.
    Drawing takes many small kernels, so `prepare` draws the batches of AHEAD steps at once, and a training step, which
    may be a CUDA graph, takes one of them by its number: x (rows, length), y (rows, length) and the number of labels.
    """

    def __init__(self, draw: Generate, rows: int, length: int, growing: float, power: float = 1) -> None:
        self.draw, self.rows, self.length, self.growing, self.power = draw, rows, length, growing, power
        self.batches: Tensors = ()  # (AHEAD, ...) each
        self.next: Tensor | None = None

    def prepare(self, random: torch.Generator, done: int) -> None:
        """Draw the next batches if those of the last call are used up; call before every step, after `done` of them."""
        if done % AHEAD:
            return
        x, y = (t.view(AHEAD, self.rows, self.length) for t in self.draw(random, AHEAD * self.rows, self.length))
        if self.growing:
            steps = torch.arange(done, done + AHEAD, dtype=torch.double, device=random.device)
            most = max(1.0, self.growing)
            longest = 1 + torch.floor(steps**self.power * self.length / most**self.power)
            y = torch.where(torch.arange(self.length, device=random.device) < longest.view(-1, 1, 1), y, IGNORE)
        new = (x, y, (y != IGNORE).sum((1, 2)).clamp(min=1))
        if self.next is None:
            self.batches, self.next = tuple(t.clone() for t in new), torch.zeros_like(new[2][:1])
        else:
            for old, t in zip(self.batches, new, strict=True):
                old.copy_(t)
            self.next.zero_()

    def __call__(self, random: torch.Generator, device: torch.device) -> Tensors:
        assert self.next is not None
        batch = tuple(t.index_select(0, self.next).squeeze(0) for t in self.batches)
        self.next += 1
        return batch


def labelled_loss(model: nn.Module, batch: Tensors) -> Tensor:
    """Return the mean cross-entropy over the labels of a batch (x, y, number of labels)."""
    x, y, labels = batch
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum") / labels
