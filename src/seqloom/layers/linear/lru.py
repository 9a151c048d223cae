"""LRU: a linear recurrence with a complex diagonal transition."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.kernels.linear.diagonal import scan_pairs
from seqloom.layers.linear.layer import Mixer, read_float_state, wide


class LRU(Mixer, name="lru"):
    """Linear recurrent unit.

        a  = exp(-exp(nu) + i exp(theta))               one complex value for each of N channels, |a| < 1
        h' = a h + g B x                                 g = exp(gamma), at the start sqrt(1 - |a|^2)
        y  = W_o gelu(Re(C h') + d x)

    State: h (B, N, 2), real and imaginary parts. Orvieto et al. 2023, arXiv 2303.06349.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Ignored; accepted so that the layer can replace an attention.
        channels: Complex channels of the state, N; 0 for dim.
        shortest: Least |a| at the start.
        longest: Largest |a| at the start.
        causal: Must be True.

    Example:
        >>> y, state = seqloom.LRU(8)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[0].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8, 2]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        channels: int = 0,
        shortest: float = 0.4,
        longest: float = 0.99,
        causal: bool = True,
    ) -> None:
        super().__init__(dim, 1, causal)
        if not 0 <= shortest < longest < 1:
            raise UserError(f"0 <= shortest < longest < 1 must hold, got {shortest} and {longest}")
        N = self.channels = channels or dim
        square = torch.empty(N).uniform_(shortest**2, longest**2)
        self.nu = nn.Parameter(torch.log(-0.5 * torch.log(square)))
        self.theta = nn.Parameter(torch.log(torch.empty(N).uniform_(1e-3, math.pi)))
        self.gamma = nn.Parameter(0.5 * torch.log1p(-square))
        self.B = nn.Parameter(torch.randn(2, N, dim) * (2 * dim) ** -0.5)  # real and imaginary part
        self.C = nn.Parameter(torch.randn(2, dim, N) * N**-0.5)
        self.d = nn.Parameter(torch.randn(dim))
        self.W_o = nn.Linear(dim, dim)
        self.state_size = 1

    def transition(self) -> tuple[Tensor, Tensor]:
        """Return the real and imaginary part of a, (N,)."""
        size, angle = torch.exp(-torch.exp(wide(self.nu))), torch.exp(wide(self.theta))
        return size * torch.cos(angle), size * torch.sin(angle)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        u, g = wide(x), torch.exp(wide(self.gamma))
        b = torch.stack([g * F.linear(u, wide(B)) for B in self.B], -1)
        h = start_pairs(b, state)
        y, end = scan_pairs(torch.stack(self.transition(), -1), b, h, lengths=lengths, reset=reset)
        C = wide(self.C)
        re, im = (part.contiguous() for part in y.unbind(-1))  # torch.export asks whether strides are equal
        out = F.linear(re, C[0]) - F.linear(im, C[1]) + wide(self.d) * u
        return self.W_o(F.gelu(out).to(x.dtype)), (end,)


def start_pairs(b: Tensor, state: State | None) -> Tensor:
    """Return the state before the first step (B, N, 2), in the type of b (B, T, N, 2)."""
    h = read_float_state(None if state is None else state[0])
    return torch.zeros(b.shape[0], *b.shape[2:], dtype=b.dtype, device=b.device) if h is None else h.to(b.dtype)
