"""Masks of real steps."""

from __future__ import annotations

import torch
from torch import Tensor


def make_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return a mask (B, steps): True at the steps within each row's length.

    Args:
        lengths: (B,): number of real steps of each row.
        steps: Number of steps including padding.

    Example:
        >>> make_mask(torch.tensor([1, 3]), 3)
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)
