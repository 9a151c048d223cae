"""Scores of keys for a query, and attention by such scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from seqloom.attention.parts import Lengths, mask_steps, real_steps, softmax
from seqloom.core.errors import InputError, UserError


class Score(nn.Module):
    """Base class of scores: `forward(query, keys)` maps (B, Q, query_size), (B, S, key_size) to (B, Q, S)."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_size, self.key_size = query_size, key_size

    def extra_repr(self) -> str:
        return f"{self.query_size}, {self.key_size}"


class ConcatScore(Score):
    """A linear score of query and key, with different weights for each key position.

        s_ij = w_j [q_i, k_j] + b_j

    With equal weights for all positions the softmax would cancel the query. There may be at most `positions` keys.
    """

    def __init__(self, query_size: int, key_size: int, positions: int = 256) -> None:
        super().__init__(query_size, key_size)
        self.positions = positions
        self.linear = nn.Linear(query_size + key_size, positions)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        S = keys.shape[1]
        if self.positions < S:
            raise InputError(
                f"keys have {S} positions, ConcatScore has {self.positions}; construct it with positions={S}"
            )
        w_q, w_k = self.linear.weight[:S].split([self.query_size, self.key_size], -1)
        s = query @ w_q.T + (keys * w_k).sum(-1).unsqueeze(1)
        return s + self.linear.bias[:S]


class AdditiveScore(Score):
    """The sum of a hidden layer over query and key.

        s_ij = sum(v * tanh(W [q_i, k_j] + b))     weighted=False: v = 1

    Bahdanau et al. 2015, arXiv 1409.0473, learn v: weighted=True.
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int | None = None, weighted: bool = False) -> None:
        super().__init__(query_size, key_size)
        hidden_size = key_size if hidden_size is None else hidden_size
        self.linear = nn.Linear(query_size + key_size, hidden_size)
        self.v = nn.Parameter(torch.randn(hidden_size) / math.sqrt(hidden_size)) if weighted else None

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        W_q, W_k = self.linear.weight.split([self.query_size, self.key_size], -1)
        hidden = (query @ W_q.T + self.linear.bias).unsqueeze(2) + (keys @ W_k.T).unsqueeze(1)  # (B, Q, S, hidden)
        t = torch.tanh(hidden)
        return t.sum(-1) if self.v is None else t @ self.v


class DotScore(Score):
    """The scaled dot product.

        s_ij = q_i k_j / sqrt(d)

    Vaswani et al. 2017, arXiv 1706.03762.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__(query_size, key_size)
        if query_size != key_size:
            raise UserError(
                f"a dot product needs query_size == key_size, got {query_size} and {key_size}; use GeneralScore"
            )

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ keys.mT / math.sqrt(self.key_size)


class GeneralScore(Score):
    """A bilinear product.

        s_ij = q_i W k_j

    Luong et al. 2015, arXiv 1508.04025.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__(query_size, key_size)
        self.weight = nn.Parameter(torch.empty(query_size, key_size))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, query: Tensor, keys: Tensor) -> Tensor:
        return query @ self.weight @ keys.mT


SCORES: dict[str, type[Score]] = {
    "concat": ConcatScore,
    "additive": AdditiveScore,
    "dot": DotScore,
    "general": GeneralScore,
}


def attend(
    scores: Tensor, values: Tensor, lengths: Lengths = None, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Average values with the softmax of scores.

        a = softmax(s)
        c = a V

    Args:
        scores: (B, Q, S).
        values: (B, S, dv).
        lengths: (B,), the real values of each row.
        mask: Broadcasts to (B, Q, S), True where a query may attend. A query that may attend to no value gets zeros.

    Returns:
        The context (B, Q, dv) and the weights (B, Q, S).

    Raises:
        InputError: If the shapes do not fit.
    """
    if scores.dim() != 3 or values.dim() != 3 or scores.shape[-1] != values.shape[1]:
        raise InputError(f"scores (B, Q, S) and values (B, S, dv) do not fit: {[*scores.shape]} and {[*values.shape]}")
    real = real_steps(lengths, values)
    allowed = mask if real is None else real.unsqueeze(1) if mask is None else real.unsqueeze(1) & mask
    a = softmax(scores, allowed)
    return a @ mask_steps(values, real), a
