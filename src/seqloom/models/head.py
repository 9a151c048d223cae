"""From what a layer says to the scores of all tokens."""

from __future__ import annotations

from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.models.embed import Embed


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
