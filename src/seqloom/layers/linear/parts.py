"""Shared parts of linear recurrences: short convolutions, norms over heads, and initial values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import InputError
from seqloom.core.job import clone_part
from seqloom.core.precision import autocast_dtype


class ShortConv(nn.Module):
    """A causal convolution over the last few steps of each channel, followed by SiLU.

        y_t = silu(w_0 x_(t-k+1) + ... + w_(k-1) x_t + b)          for each channel

    Args:
        width: Channels, C.
        taps: Steps that an output sees, k.
        bias: Whether to add b.
        active: Whether to apply SiLU.
    """

    def __init__(self, width: int, taps: int, bias: bool = False, active: bool = True) -> None:
        super().__init__()
        self.width, self.taps, self.active = width, taps, active
        self.weight = nn.Parameter(torch.empty(width, taps).uniform_(-(taps**-0.5), taps**-0.5))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(
        self, x: Tensor, past: Tensor | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return y (B, T, C) and the last k - 1 inputs (B, k - 1, C); x has zeros past each row's length.

        A reset hides all earlier inputs; one inside the last k - 1 steps sets the inputs before it to 0.
        """
        B, T, _ = x.shape
        before = self.taps - 1
        if past is None:
            past = x.new_zeros(B, before, self.width)
        elif tuple(past.shape) != (B, before, self.width):
            raise InputError(f"a state has shape {tuple(past.shape)}, expected {(B, before, self.width)}")
        if past.dtype != x.dtype or autocast_dtype(x.device.type):
            past = past.to(x.dtype)
        both = torch.cat([past, x], 1)  # (B, k - 1 + T, C)
        if reset is None and (x.device.type != "cpu" or torch.compiler.is_exporting()):
            y = F.conv1d(both.transpose(1, 2), self.weight.unsqueeze(1), self.bias, groups=self.width).transpose(1, 2)
        else:  # torch's convolution by channel takes ten times as long on a CPU
            y = self._sum_taps(both, reset, T)
        last = _take_last(both, lengths, before, T)
        if reset is not None and before:
            last = last * _is_current(reset, lengths, before).unsqueeze(-1)
        return F.silu(y) if self.active else y, last

    def _sum_taps(self, both: Tensor, reset: Tensor | None, T: int) -> Tensor:
        """Convolve tap by tap, without the inputs before a reset."""
        taps = self.weight.t().contiguous()  # (k, C)
        if T == 1 and reset is None:
            y = (both * taps).sum(1, keepdim=True)
            return y if self.bias is None else y + self.bias
        visible = None if reset is None else torch.ones_like(reset)
        y = both.new_zeros(()) if self.bias is None else self.bias
        for distance in range(self.taps):
            start = self.taps - 1 - distance
            seen = both[:, start : start + T]
            if visible is not None and reset is not None:
                seen = seen.masked_fill(~visible.unsqueeze(-1), 0)
                visible = visible & ~F.pad(reset, (distance, 0))[:, :T]
            y = torch.addcmul(y, taps[start], seen)
        return y


def _take_last(both: Tensor, lengths: Tensor | None, before: int, T: int) -> Tensor:
    """Return the last `before` inputs of each row of (B, before + T, C)."""
    if lengths is None:
        return clone_part(both[:, T:])
    index = lengths.unsqueeze(1) + torch.arange(before, device=both.device)  # (B, before)
    return both.gather(1, index.unsqueeze(-1).expand(-1, -1, both.shape[-1]))


def _is_current(reset: Tensor, lengths: Tensor | None, before: int) -> Tensor:
    """Return (B, before): whether each of a row's last inputs came at or after the row's last reset."""
    B, T = reset.shape
    at = torch.arange(T, device=reset.device)
    ends = torch.full((B, 1), T, device=reset.device) if lengths is None else lengths.unsqueeze(1)
    last = torch.where(reset & (at < ends), at, -before).amax(1, keepdim=True)
    return ends - before + torch.arange(before, device=reset.device) >= last


class HeadNorm(nn.Module):
    """Root-mean-square norm of each head, optionally times a gate: y = scale x / rms(x) * silu(z).

    Zhang & Sennrich 2019, arXiv 1910.07467.
    """

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        y = x.to(wide)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.scale.to(wide)
        return y if gate is None else y * F.silu(gate.to(wide))


class HeadLayerNorm(nn.Module):
    """Layer norm of each head, with a weight for each channel of each head, times a gate: y = norm(x) sigmoid(z).

    Args:
        heads: Heads.
        width: Channels of a head.
        eps: Added to the variance.
    """

    def __init__(self, heads: int, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(heads, width)), eps

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        y = F.layer_norm(x.to(wide), x.shape[-1:], eps=self.eps) * self.scale.to(wide)
        return y * torch.sigmoid(gate.to(wide))


def normalise(x: Tensor) -> Tensor:
    """Return x / |x| over the last dimension, in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def draw_step_bias(size: int, low: float = 1e-3, high: float = 0.1) -> Tensor:
    """Return biases b with softplus(b) between `low` and `high`, evenly in the logarithm (Gu & Dao 2023)."""
    dt = torch.exp(torch.empty(size).uniform_(math.log(low), math.log(high)))
    return dt + torch.log(-torch.expm1(-dt))
