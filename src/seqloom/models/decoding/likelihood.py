"""How well a model foresees the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError

IGNORED = -100  # torch's mark for a target that does not count


def shift_targets(ids: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
    """(B, T) -> what is read (B, T-1) and what must be foreseen (B, T-1), the padding marked as ignored."""
    if ids.dim() != 2 or ids.shape[1] < 2:
        raise InputError(f"ids must be (B, T) with at least 2 steps, one to read and one to foresee; got {ids.shape}")
    read, target = ids[:, :-1], ids[:, 1:]
    if lengths is not None:
        left = read_lengths(lengths, ids.shape[0], ids.shape[1], ids.device).unsqueeze(1) - 1
        target = target.masked_fill(torch.arange(target.shape[1], device=ids.device) >= left, IGNORED)
    return read, target


def loss(logits: Tensor, target: Tensor, smoothing: float = 0.0) -> Tensor:
    """Mean cross-entropy in nats of the targets that count; 0 where none does.

    `smoothing` spreads that share of each target over the vocabulary (Szegedy et al. 2016, arXiv 1512.00567).
    """
    flat = target.reshape(-1).long()
    total = F.cross_entropy(logits.flatten(0, -2), flat, reduction="sum", label_smoothing=smoothing)
    return total / (flat != IGNORED).sum().clamp(min=1)


def perplexity(nats: Tensor | float) -> float:
    """exp of the mean loss: among how many equally likely tokens the model seems to choose."""
    return math.exp(_number(nats))


def bits(nats: Tensor | float) -> float:
    """The mean loss in bits for each token."""
    return _number(nats) / math.log(2)


def _number(nats: Tensor | float) -> float:
    return float(nats.detach() if isinstance(nats, Tensor) else nats)
