"""HGRN2: gated linear attention whose keys are what the gates forget."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.layers.linear.layer import LinearMixer, Terms, wide
from seqloom.layers.linear.parts import HeadNorm


class HGRN2(LinearMixer, name="hgrn2"):
    """HGRN2: a linear RNN with forget gates, whose state is expanded by an outer product.

        f  = l + (1 - l) sigmoid(W_f x)
        S' = diag(f) S + (1 - f) v^T                                 v = W_v x
        y  = W_o norm(S'^T q)                                         q = silu(W_q x)

    State: S (B, heads, K, K), K = dim / heads. Qin et al. 2024, arXiv 2404.07904.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        lower: Least value of a forget gate, l; upper layers of a stack usually remember longer.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.HGRN2(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[0].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 4]))
    """

    def __init__(
        self, dim: int, heads: int = 4, *, lower: float = 0.0, causal: bool = True, kernel: str = "auto"
    ) -> None:
        super().__init__(dim, heads, causal, kernel)
        if not 0 <= lower < 1:
            raise UserError(f"lower must be at least 0 and below 1, got {lower}")
        self.lower = lower
        self.W_qfv, self.W_o = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.norm = HeadNorm(self.value_size)

    def project(self, x: Tensor) -> Tensor:
        return self.W_qfv(x)

    def terms(self, x: Tensor, u: Tensor) -> Terms:
        q, f, v = (self.split(t) for t in u.chunk(3, -1))
        f = wide(f)
        k = (1 - self.lower) * torch.sigmoid(-f)  # 1 - f, exact where f is close to 1
        decay = F.logsigmoid(f) if self.lower == 0 else torch.log1p(-k)
        return Terms(F.silu(q), k, v, decay=decay)
