"""Gated DeltaNet: the delta rule on a state that decays."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm, draw_step_bias, normalise


class GatedDeltaNet(LinearMixer, name="gated_deltanet"):
    """Gated DeltaNet: decay, then the delta rule.

        q, k, v = silu(conv(W x)),  q = q / |q| / sqrt(K),  k = k / |k|
        alpha   = exp(-exp(A) softplus(W_a x + b))             one gate for each head
        beta    = sigmoid(W_b x)                               times 2 with `negative_eigenvalues`
        S'      = alpha (I - beta k k^T) S + beta k v^T
        y       = W_o (norm(S'^T q) * silu(W_g x))

    State: the inputs of the convolution, S (B, heads, K, V). Yang et al. 2024, arXiv 2412.06464; negative eigenvalues:
    Grazzi et al. 2024, arXiv 2411.12537.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        value_size: Channels of a value in each head, V; 0 for dim / heads.
        kernel_size: Steps of the convolution; 0 for none.
        negative_eigenvalues: Whether beta goes up to 2, so that the layer can track states such as parity.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> layer = seqloom.GatedDeltaNet(8, heads=2, negative_eigenvalues=True)
        >>> y, state = layer(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y_next, state = layer.step(torch.randn(3, 8), state)
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
        self.W_qkv = nn.Linear(dim, sum(self.sizes), bias=False)
        self.W_a, self.W_b = nn.Linear(dim, heads, bias=False), nn.Linear(dim, heads, bias=False)
        self.W_g, self.W_o = nn.Linear(dim, V, bias=False), nn.Linear(V, dim, bias=False)
        self.b = nn.Parameter(draw_step_bias(heads))
        self.A = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.norm = HeadNorm(self.value_size)
        self.add_conv(sum(self.sizes), kernel_size)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        q, k, v = (self.split(t) for t in (u if self.conv is not None else F.silu(u)).split(self.sizes, -1))
        decay = -wide(self.A).exp() * F.softplus(wide(self.W_a(x)) + wide(self.b))
        beta = torch.sigmoid(wide(self.W_b(x))) * (2 if self.negative_eigenvalues else 1)
        return Terms(normalise(q) * self.key_size**-0.5, normalise(k), v, decay=decay, beta=beta)
