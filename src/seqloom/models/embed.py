"""Tokens as inputs and outputs of a model: special ids, embedding and output head."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.models.checks import check_ids


@dataclass(frozen=True)
class Marks:
    """Special token ids; a sequence is: start, words, stop, padding."""

    padding: int = 0
    start: int = 1
    stop: int = 2

    def __post_init__(self) -> None:
        if len({self.padding, self.start, self.stop}) < 3 or min(self.padding, self.start, self.stop) < 0:
            raise UserError(f"padding, start and stop must be three different ids of at least 0, got {self}")


class Embed(nn.Module):
    """Embedding of token ids, with dropout on the vectors.

    Args:
        vocabulary: Number of ids.
        dim: Width of the vectors.
        dropout: Dropout on the vectors, in training.
        padding: Id that is always the zero vector and is not trained; None for no such id.
        scaled: Whether to store vectors divided by sqrt(dim) and to multiply them when read. The vectors are the same,
            but learn sqrt(dim) times faster, as a Transformer needs (Vaswani et al. 2017, arXiv 1706.03762, 3.4).
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
        """Map ids (...) to vectors (..., dim)."""
        check_ids(ids, self.vocabulary, "ids")
        return self.dropout(self.table(ids) * self.scale)


class Head(nn.Module):
    """Output head over a vocabulary: dropout, then logits = W y + b.

    Args:
        width: Width of the layer's output, H.
        embed: The embedding of the same vocabulary.
        tied: Whether W is the embedding's table (Press & Wolf 2017, arXiv 1608.05859). Its vectors have length sqrt(H)
            unless it is scaled; y is then divided by sqrt(H).
        dropout: Dropout on y, in training.
    """

    def __init__(self, width: int, embed: Embed, *, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if tied and width != embed.output_size:
            raise UserError(f"tied=True needs an embedding as wide as the output, {width}; it has {embed.output_size}")
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(width, embed.vocabulary)
        self.scale = width**-0.5 if tied and embed.scale == 1.0 else 1.0
        if tied:
            self.linear.weight = embed.table.weight

    def forward(self, y: Tensor) -> Tensor:
        """Map outputs (..., H) to logits (..., V)."""
        return self.linear(self.dropout(y) * self.scale)
