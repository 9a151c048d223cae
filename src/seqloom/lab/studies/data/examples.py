"""Labelled sequences, padded to one length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Examples:
    """N rows: x (N, T, ...), how many of its steps are real, and the class of each."""

    x: Tensor
    lengths: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, which: Tensor) -> Examples:
        """These rows, in their order."""
        return Examples(*(t.index_select(0, which) for t in (self.x, self.lengths, self.y)))

    def part(self, begin: int, end: int) -> Examples:
        return Examples(self.x[begin:end], self.lengths[begin:end], self.y[begin:end])

    def to(self, device: torch.device) -> Examples:
        return Examples(self.x.to(device), self.lengths.to(device), self.y.to(device))

    def shuffle(self, seed: int = 0) -> Examples:
        """In an order that is the same every time: files are often sorted by class."""
        return self.rows(torch.randperm(len(self), generator=torch.Generator().manual_seed(seed)))
