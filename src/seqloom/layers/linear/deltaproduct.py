"""DeltaProduct: several steps of the delta rule for each input."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm, draw_step_bias, normalise


class DeltaProduct(LinearMixer, name="deltaproduct"):
    """Gated DeltaProduct: a decay, then n steps of the delta rule, each with its own key, value and rate.

        S'  = (I - beta_n k_n k_n^T) ... (I - beta_1 k_1 k_1^T) alpha S + what the n steps write
        y   = W_o (norm(S'^T q) * silu(W_g x))

    A product of n Householder matrices: with n = 2 and `negative_eigenvalues` it contains all rotations of a plane, and
    with n = 4 all permutations of five elements. q, k, v, alpha and beta are those of Gated DeltaNet. State: the inputs
    of the convolution, S (B, heads, K, V). Siems et al. 2025, arXiv 2502.10297.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        writes: Steps of the delta rule for each input, n.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        kernel_size: Steps of the convolution; 0 for none.
        negative_eigenvalues: Whether beta goes up to 2.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.DeltaProduct(8, heads=2, writes=3)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 4]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        writes: int = 2,
        key_size: int = 0,
        kernel_size: int = 4,
        negative_eigenvalues: bool = True,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel, key_size)
        if writes < 1:
            raise UserError(f"writes must be at least 1, got {writes}")
        self.writes, self.negative_eigenvalues = writes, negative_eigenvalues
        K = heads * self.key_size
        self.sizes = [K, writes * K, writes * dim]
        self.W_qkv = nn.Linear(dim, sum(self.sizes), bias=False)
        self.W_a, self.W_b = nn.Linear(dim, heads, bias=False), nn.Linear(dim, writes * heads, bias=False)
        self.W_g, self.W_o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.b = nn.Parameter(draw_step_bias(heads))
        self.A = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.norm = HeadNorm(self.value_size)
        self.add_conv(sum(self.sizes), kernel_size)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        n = self.writes
        q, k, v = (u if self.conv is not None else F.silu(u)).split(self.sizes, -1)
        k, v = (self.split(t.unflatten(-1, (n, -1)).flatten(1, 2)) for t in (k, v))  # (B, T n, heads, ...)
        beta = torch.sigmoid(wide(self.W_b(x))) * (2 if self.negative_eigenvalues else 1)
        alpha = -wide(self.A).exp() * F.softplus(wide(self.W_a(x)) + wide(self.b))  # (B, T, heads)
        rest = alpha.new_zeros(*alpha.shape[:2], n - 1, self.heads)
        decay = torch.cat([alpha.unsqueeze(2), rest], 2).flatten(1, 2)  # before the first write of a step
        q = normalise(self.split(q)) * self.key_size**-0.5
        return Terms(q, normalise(k), v, decay=decay, beta=beta.unflatten(-1, (n, -1)).flatten(1, 2), writes=n)
