"""Feature maps phi for linear attention: phi(q) phi(k) replaces exp(q k)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Elu(nn.Module):
    """phi(x) = elu(x) + 1. Katharopoulos et al. 2020, arXiv 2006.16236.

    A query's features are divided by their sum, which cancels in the output. Without this, sums over a thousand steps
    would overflow float16.
    """

    def query(self, q: Tensor) -> Tensor:
        q = F.elu(q) + 1
        return q / q.sum(-1, keepdim=True).detach().clamp(min=torch.finfo(q.dtype).tiny)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        return F.elu(k) + 1


class Random(nn.Module):
    """Base class of features from random directions w, which the state_dict contains.

    Args:
        head_size: Size of queries and keys, d.
        count: Number of directions, m. The mean error falls as 1 / sqrt(m).
        orthogonal: Draw orthogonal directions, `head_size` at a time, which lowers the error.
    """

    w: Tensor

    def __init__(self, head_size: int, count: int = 256, orthogonal: bool = True) -> None:
        super().__init__()
        self.head_size, self.count, self.orthogonal = head_size, count, orthogonal
        self.register_buffer("w", self._draw())

    def redraw(self) -> None:
        """Draw new directions. A backward pass through results of the old ones remains possible."""
        self.w = self._draw().to(self.w)

    def _draw(self) -> Tensor:
        w = torch.randn(self.count, self.head_size)
        if not self.orthogonal:
            return w
        blocks = [_draw_rotation(self.head_size) for _ in range(0, self.count, self.head_size)]
        return torch.cat(blocks)[: self.count] * w.norm(dim=1, keepdim=True)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return w x and |x|^2 / 2 for x / d^(1/4), so that q k is divided by sqrt(d)."""
        x = x / self.head_size**0.25
        return x @ self.w.T, x.square().sum(-1, keepdim=True) / 2


class Positive(Random):
    """phi(x) = exp(w x - |x|^2 / 2) / sqrt(m), always above 0.

    The largest exponent of each query (and, without causal=True, of all keys) is subtracted; it cancels in the output.
    Choromanski et al. 2021, arXiv 2009.14794 (Performer).
    """

    def query(self, q: Tensor) -> Tensor:
        wq, _ = self.project(q)
        return torch.exp(wq - wq.amax(-1, keepdim=True).detach()) / math.sqrt(self.count)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        wk, half = self.project(k)
        s = wk - half
        s = s if causal else s - s.amax((-1, -2), keepdim=True).detach()
        return torch.exp(s) / math.sqrt(self.count)


class Trigonometric(Random):
    """phi(x) = exp(|x|^2 / 2) [cos(w x), sin(w x)] / sqrt(m); for queries the factor cancels and is left out.

    The sum that normalises can be near 0 or negative, so `Positive` is more stable.
    Rahimi & Recht 2007; Peng et al. 2021, arXiv 2103.02143.
    """

    def query(self, q: Tensor) -> Tensor:
        wq, _ = self.project(q)
        return torch.cat([wq.cos(), wq.sin()], -1) / math.sqrt(self.count)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        wk, half = self.project(k)
        half = half if causal else half - half.amax(-2, keepdim=True).detach()
        return torch.exp(half) * torch.cat([wk.cos(), wk.sin()], -1) / math.sqrt(self.count)


def _draw_rotation(size: int) -> Tensor:
    """Draw a uniformly distributed orthogonal matrix; the signs correct the bias of a plain QR."""
    Q, R = torch.linalg.qr(torch.randn(size, size))
    return Q * R.diagonal().sign()
