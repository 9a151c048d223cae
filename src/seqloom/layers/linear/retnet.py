"""RetNet: retention, linear attention with a fixed decay for each head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.attention.position import Rotary
from seqloom.core.cell import State
from seqloom.layers.linear.layer import LinearMixer, Terms, read_float_state, wide
from seqloom.layers.linear.parts import HeadNorm


class RetNet(LinearMixer, name="retnet"):
    """Retention: each head forgets at its own fixed rate.

        q, k = rotate(W_q x, t), rotate(W_k x, t) / sqrt(K)
        S'   = gamma_h S + k v^T                         gamma_h = 1 - 2^(-5 - h)
        y    = W_o (norm(S'^T q) * silu(W_g x))

    State: the number of steps (B,), S (B, heads, K, V). Sun et al. 2023, arXiv 2307.08621.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        key_size: Channels of a key in each head, K, an even number; 0 for dim / heads.
        value_size: Channels of a value in each head, V; 0 for dim / heads.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> layer = seqloom.RetNet(8, heads=2)
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 4]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        key_size: int = 0,
        value_size: int = 0,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel, key_size, value_size)
        self.state_size = 2
        self.position = Rotary(heads, self.key_size)
        K, V = heads * self.key_size, heads * self.value_size
        self.W_q, self.W_k = nn.Linear(dim, K, bias=False), nn.Linear(dim, K, bias=False)
        self.W_v, self.W_g = nn.Linear(dim, V, bias=False), nn.Linear(dim, V, bias=False)
        self.W_o = nn.Linear(V, dim, bias=False)
        self.norm = HeadNorm(self.value_size)

    def decays(self, like: Tensor) -> Tensor:
        """Return the logarithms of the decays, (heads,)."""
        h = torch.arange(self.heads, device=like.device, dtype=torch.float64)
        return torch.log1p(-torch.exp2(-5 - h)).to(wide(like).dtype)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        B, T, _ = x.shape
        count = torch.zeros(B, dtype=torch.long, device=x.device) if state is None else state[0]
        at = count.unsqueeze(1) + torch.arange(T, device=x.device)
        q = self.rotate(self.split(self.W_q(x)), at)
        k = self.rotate(self.split(self.W_k(x)), at) * self.key_size**-0.5
        v = self.split(self.W_v(x))
        decay = self.decays(x).expand(B, T, self.heads)
        S = read_float_state(None if state is None else state[1])
        y, S = self.recur(Terms(q, k, v, decay=decay), S, lengths, reset)
        y = self.norm(y, self.split(self.W_g(x))).flatten(2).to(x.dtype)
        return self.W_o(y), (count + (T if lengths is None else lengths), S)

    def rotate(self, t: Tensor, at: Tensor) -> Tensor:
        """Rotate (B, T, heads, K) by its positions (B, T)."""
        return self.position.query(t.transpose(1, 2), at).transpose(1, 2)
