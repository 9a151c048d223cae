"""DeltaNet: linear attention that replaces the old value of a key."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm, normalise


class DeltaNet(LinearMixer, name="deltanet"):
    """DeltaNet: the delta rule moves the value that S has for the key k towards v.

        q, k, v = silu(conv(W x)),  q = q / |q| / sqrt(K),  k = k / |k|
        beta    = sigmoid(W_b x)                               times 2 with `negative_eigenvalues`
        S'      = S + beta k (v - S^T k)^T = (I - beta k k^T) S + beta k v^T
        y       = W_o norm(S'^T q)

    With beta above 1, I - beta k k^T has a negative eigenvalue, which tracking a state such as parity needs (Grazzi et
    al. 2024, arXiv 2411.12537). State: the inputs of the convolution, S (B, heads, K, V). Yang et al. 2024, arXiv
    2406.06484.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        value_size: Channels of a value in each head, V; 0 for dim / heads.
        kernel_size: Steps of the convolution; 0 for none.
        negative_eigenvalues: Whether beta goes up to 2.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.DeltaNet(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
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
        kernel_size: int = 4,
        negative_eigenvalues: bool = False,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel, key_size, value_size)
        self.negative_eigenvalues = negative_eigenvalues
        K, V = heads * self.key_size, heads * self.value_size
        self.sizes = [K, K, V]
        self.W_qkv, self.W_b = nn.Linear(dim, sum(self.sizes), bias=False), nn.Linear(dim, heads, bias=False)
        self.W_o = nn.Linear(V, dim, bias=False)
        self.norm = HeadNorm(self.value_size)
        self.add_conv(sum(self.sizes), kernel_size)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        q, k, v = (self.split(t) for t in (u if self.conv is not None else F.silu(u)).split(self.sizes, -1))
        beta = torch.sigmoid(wide(self.W_b(x))) * (2 if self.negative_eigenvalues else 1)
        return Terms(normalise(q) * self.key_size**-0.5, normalise(k), v, beta=beta)
