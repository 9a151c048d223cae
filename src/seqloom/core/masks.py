"""Masks of real steps, made from lengths."""

from __future__ import annotations

import torch
from torch import Tensor


def make_mask(lengths: Tensor, steps: int) -> Tensor:
    """Return (B, steps): True at the steps inside each row's length.

    Args:
        lengths: (B,), the number of real steps of each row.
        steps: How many steps the rows have with their padding.

    Example:
        >>> make_mask(torch.tensor([1, 3]), 3)
        tensor([[ True, False, False],
                [ True,  True,  True]])
    """
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)
