"""Gradients of weights from the gradients of all steps, no further from the truth than the loop's."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def past(y: Tensor, h0: Tensor) -> Tensor:
    """The state before every step, as rows: (B * T, H)."""
    return torch.cat([h0.unsqueeze(1), y[:, :-1]], 1).flatten(0, 1)


def product(d: Tensor, x: Tensor) -> Tensor:
    """d^T x over many rows, in pieces: one long sum in float32 would be further off than the loop's short ones."""
    rows = max(16, math.isqrt(len(d)))
    total = d[:rows].T @ x[:rows]
    for start in range(rows, len(d), rows):
        total.addmm_(d[start : start + rows].T, x[start : start + rows])
    return total


def total(d: Tensor) -> Tensor:
    """(B, T, M) summed to (M,), rows before steps as the loop does."""
    return d.sum(0, dtype=torch.float64).sum(0).to(d.dtype)
