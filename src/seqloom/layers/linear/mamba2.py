"""Mamba-2: a state-space model with one decay for each head (SSD)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm, draw_step_bias


class Mamba2(LinearMixer, name="mamba2"):
    """Mamba-2: structured state-space duality.

        z, u, dt = W_in x                           u = silu(conv(u)), split into v, B, C;  dt = softplus(dt + b)
        S'       = exp(-dt exp(A)) S + B (dt v)^T   one A for each head; all heads share B and C
        y        = W_out norm((S'^T C + d v) * silu(z))

    State: the inputs of the convolution, S (B, heads, N, V). Dao & Gu 2024, arXiv 2405.21060.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; expand * dim must be a multiple.
        state_channels: Channels of B and C, N.
        expand: Width of v in all, as a multiple of dim.
        kernel_size: Steps of the convolution over v, B and C; 0 for none.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.Mamba2(8, heads=2, state_channels=16)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 16, 8]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        state_channels: int = 64,
        expand: int = 2,
        kernel_size: int = 4,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel)
        if state_channels < 1 or expand < 1:
            raise UserError(f"state_channels and expand must be positive, got {state_channels} and {expand}")
        self.inner = expand * dim
        self.key_size, self.value_size = state_channels, self.inner // heads
        self.sizes = [self.inner, state_channels, state_channels]
        self.W_in = nn.Linear(dim, sum(self.sizes), bias=False)
        self.W_z, self.W_dt = nn.Linear(dim, self.inner, bias=False), nn.Linear(dim, heads, bias=False)
        self.W_out = nn.Linear(self.inner, dim, bias=False)
        self.b = nn.Parameter(draw_step_bias(heads))
        self.A = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.d = nn.Parameter(torch.ones(heads))
        self.norm = HeadNorm(self.inner)
        self.add_conv(sum(self.sizes), kernel_size, bias=True)

    def project(self, x: Tensor) -> Tensor:
        return self.W_in(x)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        v, B, C = u.split(self.sizes, -1)
        dt = F.softplus(wide(self.W_dt(x)) + wide(self.b))  # (B, T, heads)
        shape = (*x.shape[:2], self.heads, self.key_size)
        k, q = (t.unsqueeze(2).expand(shape) for t in (B, C))
        return Terms(q, k, self.split(v) * dt.unsqueeze(-1).to(v.dtype), decay=-dt * wide(self.A).exp())

    def finish(self, y: Tensor, x: Tensor, u: Tensor, terms: Terms) -> Tensor:
        y = y + wide(self.d).unsqueeze(-1) * wide(self.split(u[..., : self.inner]))
        y = self.norm(y.flatten(2) * F.silu(wide(self.W_z(x))))
        return self.W_out(y.to(x.dtype))
