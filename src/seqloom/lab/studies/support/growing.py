"""Training sequences whose labelled part grows, so that a model meets short ones first."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqloom.lab.data.task import IGNORE
from seqloom.lab.studies.support.trials import Tensors

GROWING = 0.6  # share of the steps in which the training length grows

Generate = Callable[[torch.Generator, int, int], tuple[Tensor, Tensor]]  # generator, rows, steps -> x and y


class GrowingBatches:
    """Draw batches of `length` steps in which labels past the current training length are ignored.

    The training length grows from 1 to `length` in `growing` steps. It is a tensor on the device, so that drawing a
    batch can be part of a CUDA graph.
    """

    def __init__(self, draw: Generate, rows: int, length: int, growing: float) -> None:
        self.draw, self.rows, self.length, self.growing = draw, rows, length, growing
        self.done: Tensor | None = None

    def __call__(self, random: torch.Generator, device: torch.device) -> Tensors:
        if self.done is None:
            self.done = torch.zeros((), device=device)
        x, y = self.draw(random, self.rows, self.length)
        longest = 1 + torch.floor(self.done * self.length / max(1.0, self.growing))
        self.done += 1
        return x, torch.where(torch.arange(self.length, device=device) < longest, y, IGNORE)
