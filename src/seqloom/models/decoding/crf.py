"""Linear-chain conditional random field."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.core.masks import make_mask

# Elements of all steps' matrices up to which a GPU combines them instead of running step by step.
MOST_NUMBERS = 1 << 26


class CRF(nn.Module):
    """Linear-chain conditional random field: a distribution over whole chains of tags.

        score(e, y) = b_{y_1} + sum_t e_{t, y_t} + sum_t A_{y_t-1, y_t} + c_{y_n}
        log Z(e)    = log sum_y exp score(e, y)
        p(y | e)    = exp(score(e, y) - log Z(e))

    A row of length 0 has one chain, the empty one: its score and log Z are 0. All methods take emissions e (B, T, K)
    and lengths (B,), and compute in float32 or float64 for emissions of any type.

    Lafferty, McCallum & Pereira 2001 (ICML); over a neural layer Huang, Xu & Yu 2015, arXiv 1508.01991.
    """

    def __init__(self, tags: int) -> None:
        super().__init__()
        if tags < 1:
            raise UserError(f"tags must be at least 1, got {tags}")
        self.tags = tags
        self.A = nn.Parameter(torch.zeros(tags, tags))  # from, to
        self.b = nn.Parameter(torch.zeros(tags))
        self.c = nn.Parameter(torch.zeros(tags))

    def log_likelihood(self, e: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return log p(y | e) of each row (B,)."""
        return self.score(e, y, lengths) - self.log_partition(e, lengths)

    def score(self, e: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the score (B,) of the chains y (B, T); tags past a row's length are ignored."""
        e, lengths, real = self._read(e, lengths)
        y = torch.where(real, y, torch.zeros_like(y))
        at = e.gather(2, y.unsqueeze(2)).squeeze(2)  # (B, T)
        after = self.A[y[:, :-1], y[:, 1:]]  # (B, T - 1)
        end = y.gather(1, (lengths - 1).clamp(min=0).unsqueeze(1)).squeeze(1)  # (B,)
        ends = (self.b[y[:, 0]] + self.c[end]) * (lengths > 0)
        return ends + (at * real).sum(1) + (after * real[:, 1:]).sum(1)

    def log_partition(self, e: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return log Z of each row (B,)."""
        e, lengths, real = self._read(e, lengths)
        alpha = self.b + e[:, 0]  # (B, K)
        if e.is_cuda and e.shape[1] > 1 and e.numel() * self.tags <= MOST_NUMBERS:
            return torch.logsumexp(join_steps(alpha, self.A, e[:, 1:], real[:, 1:]) + self.c, 1) * (lengths > 0)
        for t in range(1, e.shape[1]):
            longer = torch.logsumexp(alpha.unsqueeze(2) + self.A, 1) + e[:, t]
            alpha = torch.where(real[:, t : t + 1], longer, alpha)
        return torch.logsumexp(alpha + self.c, 1) * (lengths > 0)

    @torch.no_grad()
    def decode(self, e: Tensor, lengths: Tensor | Sequence[int] | None = None) -> tuple[Tensor, Tensor]:
        """Find the best chain of each row (Viterbi): tags (B, T), -1 past its length, and its score (B,)."""
        e, lengths, real = self._read(e, lengths)
        B, T, K = e.shape
        best, back = self.b + e[:, 0], []
        stay = torch.arange(K, device=e.device).expand(B, K)
        for t in range(1, T):
            longer, before = (best.unsqueeze(2) + self.A).max(1)
            best = torch.where(real[:, t : t + 1], longer + e[:, t], best)
            back.append(torch.where(real[:, t : t + 1], before, stay))
        score, tag = (best + self.c).max(1)
        path = [tag]
        for before in reversed(back):  # past a length the tag stays, so the walk starts at the last real step
            tag = before.gather(1, tag.unsqueeze(1)).squeeze(1)
            path.append(tag)
        y = torch.stack(path[::-1], 1)
        return y.masked_fill(~real, -1), score * (lengths > 0)

    def _read(self, e: Tensor, lengths: Tensor | Sequence[int] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return emissions in the type of the weights, lengths, and a mask of the real steps (B, T)."""
        if e.dim() != 3 or e.shape[2] != self.tags or not e.shape[1]:
            raise InputError(f"emissions must be (B, T, {self.tags}) with T >= 1, got {tuple(e.shape)}")
        if lengths is None:
            lengths = torch.full((e.shape[0],), e.shape[1], device=e.device)
        lengths = read_lengths(lengths, e.shape[0], e.shape[1], e.device)
        real = make_mask(lengths, e.shape[1])
        e = torch.where(real.unsqueeze(2), e, torch.zeros_like(e))  # padding may hold anything, even NaN
        return e.to(torch.promote_types(self.A.dtype, torch.float32)), lengths, real


def join_steps(alpha: Tensor, A: Tensor, e: Tensor, real: Tensor) -> Tensor:
    """Return log alpha (B, K) after all steps, in log2 T rounds: few large operations instead of many small ones.

    The matrix of a step is exp(A + e_t), or 1 for a step past the end. Adjacent matrices are multiplied until one is
    left; each is scaled to a maximum of 1, with the logarithm of the scale kept separately. Entries smaller than the
    type's smallest value relative to the maximum, e^-87 in float32, are lost.

    Args:
        alpha: (B, K), the logarithm of the weight of each tag before these steps.
        A: (K, K), from, to.
        e: (B, T, K), T >= 1.
        real: (B, T).
    """
    K = A.shape[0]
    one = torch.eye(K, device=e.device, dtype=e.dtype)
    score = A + e.unsqueeze(2)  # (B, T, K, K)
    scale = score.detach().amax((2, 3), keepdim=True)
    P = torch.where(real[:, :, None, None], torch.exp(score - scale), one)
    scale = torch.where(real, scale[:, :, 0, 0], torch.zeros_like(scale[:, :, 0, 0]))
    while P.shape[1] > 1:
        last, last_scale = P[:, P.shape[1] // 2 * 2 :], scale[:, P.shape[1] // 2 * 2 :]  # one or none
        left, right = P[:, 0 : P.shape[1] - 1 : 2], P[:, 1::2]
        P = (left.unsqueeze(-1) * right.unsqueeze(-3)).sum(-2)
        most = P.detach().amax((2, 3), keepdim=True).clamp(min=torch.finfo(P.dtype).tiny)
        scale = scale[:, 0 : scale.shape[1] - 1 : 2] + scale[:, 1::2] + torch.log(most[:, :, 0, 0])
        P, scale = torch.cat([P / most, last], 1), torch.cat([scale, last_scale], 1)
    top = alpha.detach().amax(1, keepdim=True)
    weight = (torch.exp(alpha - top).unsqueeze(2) * P[:, 0]).sum(1)
    return torch.log(weight.clamp(min=torch.finfo(weight.dtype).tiny)) + top + scale
