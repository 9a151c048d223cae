"""Gated linear attention: a decay for every channel of the key, which depends on the input."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm

GATE_TEMPERATURE = 16  # the paper's: gates start near 1


class GLA(LinearMixer, name="gla"):
    """Gated linear attention.

        q, k, v = W_q x / sqrt(K), W_k x, W_v x
        a       = sigmoid(W_2 W_1 x + b)^(1/16)                       one gate for each channel of k
        S'      = diag(a) S + k v^T
        y       = W_o (norm(S'^T q) * silu(W_g x))

    State: S (B, heads, K, V). Yang et al. 2023, arXiv 2312.06635.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        value_size: Channels of a value in each head, V; 0 for dim / heads.
        gate_rank: Rows of W_1.
        kernel_size: Steps of a convolution over q, k and v; 0 for none.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.GLA(8, heads=2, key_size=3)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[0].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 3, 4]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        key_size: int = 0,
        value_size: int = 0,
        gate_rank: int = 16,
        kernel_size: int = 0,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel, key_size, value_size)
        K, V = heads * self.key_size, heads * self.value_size
        self.sizes = [K, K, V]
        self.W_qkv = nn.Linear(dim, sum(self.sizes), bias=False)
        self.W_a = nn.Sequential(nn.Linear(dim, gate_rank, bias=False), nn.Linear(gate_rank, K))
        self.W_g, self.W_o = nn.Linear(dim, V, bias=False), nn.Linear(V, dim, bias=False)
        self.norm = HeadNorm(self.value_size)
        self.add_conv(sum(self.sizes), kernel_size)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        q, k, v = (self.split(t) for t in u.split(self.sizes, -1))
        a = F.logsigmoid(wide(self.W_a(x))) / GATE_TEMPERATURE
        return Terms(q * self.key_size**-0.5, k, v, decay=self.split(a))
