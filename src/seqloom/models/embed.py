"""Tokens going into a model and coming out of it: special ids, embedding and output head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.models.checks import check_ids


@dataclass(frozen=True)
class Marks:
    """Ids that stand for the frame of a sequence: start, its words, stop, padding up to the batch's length."""

    padding: int = 0
    start: int = 1
    stop: int = 2

    def __post_init__(self) -> None:
        if len({self.padding, self.start, self.stop}) < 3 or min(self.padding, self.start, self.stop) < 0:
            raise UserError(f"padding, start and stop must be three different ids of at least 0, got {self}")


class Embed(nn.Module):
    """Ids (B, T) -> vectors (B, T, dim), with dropout on the vectors.

    The id `padding` is always the zero vector and learns nothing; None where no id is padding. `scaled`
    keeps a table of sqrt(dim) smaller numbers and multiplies what it reads by that: the same vectors, which
    learn sqrt(dim) times faster, as a Transformer needs (Vaswani et al. 2017, arXiv 1706.03762, 3.4).
    """

    def __init__(
        self, vocabulary: int, dim: int, dropout: float = 0.0, padding: int | None = 0, *, scaled: bool = False
    ) -> None:
        super().__init__()
        if vocabulary < 1 or dim < 1:
            raise UserError(f"vocabulary and dim must be at least 1, got {vocabulary} and {dim}")
        if padding is not None and not 0 <= padding < vocabulary:
            raise UserError(f"padding must be an id below the vocabulary of {vocabulary}, or None; got {padding}")
        self.vocabulary, self.output_size, self.padding = vocabulary, dim, padding
        self.table = nn.Embedding(vocabulary, dim, padding_idx=padding)
        self.dropout = nn.Dropout(dropout)
        self.scale = dim**0.5 if scaled else 1.0
        if scaled:
            with torch.no_grad():
                self.table.weight /= self.scale

    def forward(self, ids: Tensor) -> Tensor:
        """(...) -> (..., dim)."""
        check_ids(ids, self.vocabulary, "ids")
        return self.dropout(self.table(ids) * self.scale)


class Head(nn.Module):
    """Dropout, then logits = W y + b.

    `tied` takes the embedding as W, one table for reading and writing (Press & Wolf 2017, arXiv
    1608.05859). Where its vectors are of length sqrt(H), as they are unless scaled, y is divided by that.
    """

    def __init__(self, width: int, embed: Embed, *, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if tied and width != embed.output_size:
            raise UserError(
                f"tied weights need an embedding as wide as the output, {width}; it has {embed.output_size}"
            )
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, embed.vocabulary)
        self.scale = width**-0.5 if tied and embed.scale == 1.0 else 1.0
        if tied:
            self.linear.weight = embed.table.weight

    def forward(self, y: Tensor) -> Tensor:
        """(..., H) -> (..., V)."""
        return self.linear(self.dropout(y) * self.scale)
