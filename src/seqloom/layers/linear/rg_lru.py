"""RG-LRU: the gated linear recurrence of Griffin and RecurrentGemma."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.kernels.linear.diagonal import scan_diagonal
from seqloom.layers.linear.layer import Mixer, read_float_state, wide
from seqloom.layers.linear.parts import ShortConv

SHARPNESS = 8.0  # c of the paper


class RGLRU(Mixer, name="rg_lru"):
    """Griffin's recurrent block: a convolution, the real-gated linear recurrent unit, and a gate.

        u  = conv(W_x x)
        r  = sigmoid(W_r u + b_r),   i = sigmoid(W_i u + b_i)         one block of W for each head
        a  = exp(-8 softplus(L) r)
        h' = a h + sqrt(1 - a^2) (i u)                                 the first step of a sequence writes i u
        y  = W_o (h' * gelu(W_g x))

    State: the inputs of the convolution, h (B, H), and the number of steps (B,), of which only 0 differs. De et al.
    2024, arXiv 2402.19427.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Blocks of W_r and W_i; dim must be a multiple.
        kernel_size: Steps of the convolution; 0 for none.
        causal: Must be True.

    Example:
        >>> y, state = seqloom.RGLRU(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 8]))
    """

    def __init__(self, dim: int, heads: int = 4, *, kernel_size: int = 4, causal: bool = True) -> None:
        super().__init__(dim, heads, causal)
        if kernel_size == 1:
            raise UserError(f"kernel_size must be 0 or at least 2 steps, got {kernel_size}")
        size = dim // heads
        self.W_x, self.W_g, self.W_o = (nn.Linear(dim, dim) for _ in range(3))
        self.W_r, self.W_i = (nn.Parameter(torch.randn(heads, size, size) * size**-0.5) for _ in range(2))
        self.b_r, self.b_i = (nn.Parameter(torch.zeros(heads, size)) for _ in range(2))
        decay = torch.empty(dim).uniform_(0.9**2, 0.999**2).sqrt()  # a at r = 1, evenly in the square
        self.L = nn.Parameter(torch.log(torch.expm1(-torch.log(decay) / SHARPNESS)))
        self.conv = ShortConv(dim, kernel_size, bias=True, active=False) if kernel_size else None
        self.state_size = 2 + (kernel_size > 0)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        B, T, D = x.shape
        u, ends, left = self.convolve(self.W_x(x), state, lengths, reset)
        log_a, value = self.gates(u)
        h = read_float_state(left[0]) if left else None
        h = torch.zeros(B, D, dtype=log_a.dtype, device=x.device) if h is None else h.to(log_a.dtype)
        count = left[1] if left else torch.zeros(B, dtype=torch.long, device=x.device)
        first = (count.unsqueeze(1) + torch.arange(T, device=x.device) == 0).unsqueeze(-1)
        if reset is not None:
            first = first | reset.unsqueeze(-1)
        scale = torch.where(first, torch.ones_like(log_a), _root(-torch.expm1(2 * log_a)))
        y, h = scan_diagonal(log_a.exp(), scale * value, h, lengths=lengths, reset=reset)
        steps = count + (T if lengths is None else lengths)
        return self.W_o(y.to(x.dtype) * F.gelu(self.W_g(x), approximate="tanh")), (*ends, h, steps)

    def gates(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logarithm of a, and i u, for u (B, T, D)."""
        blocks = wide(u).unflatten(-1, (self.heads, -1))
        r = torch.sigmoid(torch.einsum("bthi,hij->bthj", blocks, wide(self.W_r)) + wide(self.b_r)).flatten(2)
        i = torch.sigmoid(torch.einsum("bthi,hij->bthj", blocks, wide(self.W_i)) + wide(self.b_i)).flatten(2)
        return -SHARPNESS * F.softplus(wide(self.L)) * r, i * wide(u)


def _root(x: Tensor) -> Tensor:
    """Return sqrt(x), whose derivative stays finite at 0."""
    return torch.sqrt(x.clamp_min(torch.finfo(x.dtype).tiny))
