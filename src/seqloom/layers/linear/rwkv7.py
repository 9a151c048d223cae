"""RWKV-7: a state that decays per channel, forgets by key and learns at a separate rate for each channel."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.layers.linear.layer import LinearMixer, Terms, wide

FASTEST_DECAY = 0.606531  # exp(-1/2): the logarithm of a decay is above minus this


class RWKV7(LinearMixer, name="rwkv7"):
    """RWKV-7 time mixing: a generalised delta rule.

        x_c = x + (x_(t-1) - x) mu_c                                for each c of r, k, v, w, a, g
        w   = exp(-exp(-1/2) sigmoid(w_0 + W_w2 tanh(W_w1 x_w)))       decay of each channel
        a   = sigmoid(a_0 + W_a2 W_a1 x_a)                          rate of each channel
        e   = k_e k / |k_e k|,   k' = k (1 + (a - 1) k_a)
        S'  = (diag(w) - (a e) e^T) S + k' v^T
        y   = W_o ((norm(S'^T r) + (r . k' r_k) v) * W_g2 sigmoid(W_g1 x_g))

    The transition is diagonal plus a matrix of rank one, with eigenvalues down to -1. State: the last input, S
    (B, heads, K, K). Peng et al. 2025, arXiv 2503.14456. The paper's mixing of values between layers is left out.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        rank: Rows of the inner matrices of w, a and g.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.RWKV7(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 4]))
    """

    def __init__(self, dim: int, heads: int = 4, *, rank: int = 32, causal: bool = True, kernel: str = "auto") -> None:
        super().__init__(dim, heads, causal, kernel)
        self.rank = rank
        self.mu = nn.Parameter(torch.empty(6, dim).uniform_(0, 1))
        self.W_r, self.W_k, self.W_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.W_w, self.W_a, self.W_g = (_make_low_rank(dim, rank, bias) for bias in (True, True, False))
        self.k_e, self.k_a = nn.Parameter(torch.full((dim,), 0.85)), nn.Parameter(torch.ones(dim))
        self.r_k = nn.Parameter(torch.zeros(heads, self.key_size))
        self.norm = nn.GroupNorm(heads, dim, eps=self.key_size * 1e-5)
        self.W_o = nn.Linear(dim, dim, bias=False)
        self.state_size = 2
        self.conv = _LastInput()
        with torch.no_grad():
            self.W_w[2].bias.copy_(torch.linspace(-6, 1, dim))  # type: ignore[operator]
            self.W_a[2].bias.zero_()  # type: ignore[operator]

    def project(self, x: Tensor) -> Tensor:
        return x

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        x_r, x_k, x_v, x_w, x_a, _ = self._shift(x, u)
        r, k, v = self.W_r(x_r), self.W_k(x_k), self.W_v(x_v)
        low = self.W_w[1](torch.tanh(self.W_w[0](x_w)))
        w = -FASTEST_DECAY * torch.sigmoid(wide(self.W_w[2](low)))
        a = torch.sigmoid(wide(self.W_a(x_a)))
        e = wide(self.split(k * self.k_e))
        e = F.normalize(e, dim=-1)
        k = wide(k) * (1 + (a - 1) * wide(self.k_a))
        r, k, a, v, w = (self.split(t) for t in (r, k, a, wide(v), w))
        # Two writes for each step: erase along e with rate a while the state decays, then write v at k'.
        none = torch.zeros_like(k)
        keys = torch.stack([e * a, k], 2).flatten(1, 2)
        values = torch.stack([torch.zeros_like(v), v], 2).flatten(1, 2)
        decay = torch.stack([w, torch.zeros_like(w)], 2).flatten(1, 2)
        erase = torch.stack([e, none], 2).flatten(1, 2)
        return Terms(r, keys, values, decay=decay, erase=erase, writes=2)

    def finish(self, y: Tensor, x: Tensor, u: Tensor, terms: Terms) -> Tensor:
        k, v = (t[:, 1::2] for t in (terms.k, terms.v))
        y = self.norm(y.flatten(0, 1).flatten(1).to(x.dtype)).unflatten(0, x.shape[:2])
        y = y + ((wide(terms.q) * k * wide(self.r_k)).sum(-1, keepdim=True) * v).flatten(2).to(x.dtype)
        x_g = self._shift(x, u)[5]
        return self.W_o(y * self.W_g[1](torch.sigmoid(self.W_g[0](x_g))))

    def _shift(self, x: Tensor, previous: Tensor) -> tuple[Tensor, ...]:
        return tuple(x + (previous - x) * mu for mu in self.mu)


class _LastInput(nn.Module):
    """The previous input, as a convolution over two steps."""

    def forward(
        self, x: Tensor, past: Tensor | None, lengths: Tensor | None, reset: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        past = x.new_zeros(x.shape[0], 1, x.shape[2]) if past is None else past.to(x.dtype)
        both = torch.cat([past, x], 1)
        previous = both[:, :-1] if reset is None else both[:, :-1].masked_fill(reset.unsqueeze(-1), 0)
        if lengths is None:
            return previous, both[:, -1:].clone()
        return previous, both.gather(1, lengths[:, None, None].expand(-1, 1, x.shape[2]))


class _Bias(nn.Module):
    def __init__(self, dim: int, used: bool) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(dim)) if used else None

    def forward(self, x: Tensor) -> Tensor:
        return x if self.bias is None else x + self.bias


def _make_low_rank(dim: int, rank: int, bias: bool) -> nn.Sequential:
    return nn.Sequential(nn.Linear(dim, rank, bias=False), nn.Linear(rank, dim, bias=False), _Bias(dim, bias))
