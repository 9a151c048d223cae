"""Labelled sequences, padded to one length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """N labelled rows: x (N, T, ...), the number of real steps of each row, and its class."""

    x: Tensor
    lengths: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: Tensor) -> LabelledRows:
        """Return the selected rows in this order."""
        return LabelledRows(*(t.index_select(0, which) for t in (self.x, self.lengths, self.y)))

    def part(self, begin: int, end: int) -> LabelledRows:
        return LabelledRows(self.x[begin:end], self.lengths[begin:end], self.y[begin:end])

    def to(self, device: torch.device) -> LabelledRows:
        return LabelledRows(self.x.to(device), self.lengths.to(device), self.y.to(device))

    def shuffle(self, seed: int = 0) -> LabelledRows:
        """Return the rows shuffled with a fixed seed, because files are often sorted by class."""
        return self.rows(torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)))
