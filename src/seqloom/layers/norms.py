"""Normalisation between stacked layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.core.masks import make_mask


class BatchNorm(nn.Module):
    """Give every feature mean 0 and variance 1 over all real steps of the batch, then scale and shift it.

    Padding does not count. Outside training the running averages are used, so that a row does not depend on others, and
    a stream matches the whole sequence.

    Args:
        size: Number of features.
        momentum: Weight of a batch in the running averages.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, size: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            real = x.new_ones(x.shape[:2]) if lengths is None else make_mask(lengths, x.shape[1]).to(x.dtype)
            steps, real = real.sum().clamp(min=1), real.unsqueeze(-1)
            mean = (x * real).sum((0, 1)) / steps
            variance = ((x - mean).square() * real).sum((0, 1)) / steps
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                unbiased = variance * steps / (steps - 1).clamp(min=1)
                self.variance.lerp_(unbiased, self.momentum)
        return (x - mean) * torch.rsqrt(variance + 1e-5) * self.weight + self.bias


def make_norm(name: str, size: int) -> nn.Module:
    """Return a norm by its name.

    Args:
        name: "rms", "layer" or "batch".
        size: Number of features.

    Raises:
        UserError: If there is no such norm.
    """
    if name == "batch":
        return BatchNorm(size)
    if name == "layer":
        return nn.LayerNorm(size)
    if name == "rms":
        return nn.RMSNorm(size, eps=1e-5)
    raise UserError(f"stack_norm must be 'rms', 'layer', 'batch' or None, got {name!r}")
