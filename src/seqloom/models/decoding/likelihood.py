"""The loss of next-token prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError

IGNORED = -100  # torch's value for a target that does not count


def shift_targets(ids: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """Split ids (B, T) into inputs (B, T-1) and targets (B, T-1); padding, past lengths (B,), is marked IGNORED."""
    if ids.dim() != 2 or ids.shape[1] < 2:
        raise InputError(f"ids must be (B, T) with at least 2 steps, one to read and one to predict; got {ids.shape}")
    read, target = ids[:, :-1], ids[:, 1:]
    if lengths is not None:
        left = read_lengths(lengths, ids.shape[0], ids.shape[1], ids.device).unsqueeze(1) - 1
        target = target.masked_fill(torch.arange(target.shape[1], device=ids.device) >= left, IGNORED)
    return read, target


def loss(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return the mean cross-entropy in nats over the targets that count; 0 if there are none.

    Args:
        logits: (..., V).
        target: Ids (...), IGNORED for those that do not count.
        smoothing: Share of each target that is spread over the vocabulary (Szegedy et al. 2016, arXiv 1512.00567).
    """
    flat = target.reshape(-1).long()
    total = F.cross_entropy(logits.flatten(0, -2), flat, reduction="sum", label_smoothing=smoothing)
    return total / (flat != IGNORED).sum().clamp(min=1)


def perplexity(nats: Tensor | float) -> float:
    """Convert a mean loss to perplexity, exp(nats)."""
    return math.exp(_number(nats))


def bits(nats: Tensor | float) -> float:
    """Convert a mean loss to bits per token."""
    return _number(nats) / math.log(2)


def _number(nats: Tensor | float) -> float:
    return float(nats.detach() if isinstance(nats, Tensor) else nats)
