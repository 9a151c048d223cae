"""Clip gradients whose squares may overflow."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clip_gradients(gradients: list[Tensor], limit: float) -> Tensor:
    """Scale gradients in place to a norm of at most `limit`; return whether all of them are finite, as a tensor.

    Gradients through a thousand steps can reach 1e30. Their squares overflow float32, so that
    `torch.nn.utils.clip_grad_norm_` returns an infinite norm; here they are divided by the largest value first.

    Args:
        gradients: Tensors on one device.
        limit: The largest norm; infinity to change nothing.
    """
    largest = torch.stack(torch._foreach_norm(gradients, math.inf)).max()
    if limit < math.inf:
        scale = largest.clamp(min=limit)
        torch._foreach_div_(gradients, scale)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.minimum(limit / norm, scale))
    return largest < math.inf  # false for NaN, too
