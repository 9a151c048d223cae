"""Feature maps phi, for which phi(q) phi(k) stands for exp(q k)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Elu(nn.Module):
    """phi(x) = elu(x) + 1. Katharopoulos et al. 2020, arXiv 2006.16236.

    A query's features are divided by their sum, which cancels: sums over a thousand steps would be
    more than float16 can hold.
    """

    def query(self, q: Tensor) -> Tensor:
        q = F.elu(q) + 1
        return q / q.sum(-1, keepdim=True).detach().clamp(min=torch.finfo(q.dtype).tiny)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        return F.elu(k) + 1


class Random(nn.Module):
    """Features from `count` random directions w; their mean error falls as 1 / sqrt(count).

    `orthogonal` draws them at right angles, head_size at a time, which lowers the error. They are
    kept in the state_dict; `redraw` takes new ones.
    """

    w: Tensor

    def __init__(self, head_size: int, count: int = 256, orthogonal: bool = True) -> None:
        super().__init__()
        self.head_size, self.count, self.orthogonal = head_size, count, orthogonal
        self.register_buffer("w", self._draw())

    def redraw(self) -> None:
        """New directions; what was computed with the old ones can still go backward."""
        self.w = self._draw().to(self.w)

    def _draw(self) -> Tensor:
        w = torch.randn(self.count, self.head_size)
        if not self.orthogonal:
            return w
        blocks = [_rotation(self.head_size) for _ in range(0, self.count, self.head_size)]
        return torch.cat(blocks)[: self.count] * w.norm(dim=1, keepdim=True)

    def scaled(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """w x and |x|^2 / 2 of x / d^(1/4), so that q k is over sqrt(d)."""
        x = x / self.head_size**0.25
        return x @ self.w.T, x.square().sum(-1, keepdim=True) / 2


class Positive(Random):
    """phi(x) = exp(w x - |x|^2 / 2) / sqrt(m), always above 0.

    A query's largest exponent and, where all keys are there at once, theirs are taken off: they
    cancel. Choromanski et al. 2021, arXiv 2009.14794 (Performer).
    """

    def query(self, q: Tensor) -> Tensor:
        wq, _ = self.scaled(q)
        return torch.exp(wq - wq.amax(-1, keepdim=True).detach()) / math.sqrt(self.count)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        wk, half = self.scaled(k)
        s = wk - half
        s = s if causal else s - s.amax((-1, -2), keepdim=True).detach()
        return torch.exp(s) / math.sqrt(self.count)


class Trigonometric(Random):
    """phi(x) = exp(|x|^2 / 2) [cos(w x), sin(w x)] / sqrt(m); the factor of a query cancels.

    The sum that normalises may come near 0 or below, so `Positive` is steadier.
    Rahimi & Recht 2007; Peng et al. 2021, arXiv 2103.02143.
    """

    def query(self, q: Tensor) -> Tensor:
        wq, _ = self.scaled(q)
        return torch.cat([wq.cos(), wq.sin()], -1) / math.sqrt(self.count)

    def key(self, k: Tensor, causal: bool) -> Tensor:
        wk, half = self.scaled(k)
        half = half if causal else half - half.amax(-2, keepdim=True).detach()
        return torch.exp(half) * torch.cat([wk.cos(), wk.sin()], -1) / math.sqrt(self.count)


def _rotation(size: int) -> Tensor:
    """A random orthogonal matrix, each as likely as any; a QR alone prefers some by their signs."""
    Q, R = torch.linalg.qr(torch.randn(size, size))
    return Q * R.diagonal().sign()
