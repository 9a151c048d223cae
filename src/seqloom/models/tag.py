"""N to N: a tag for every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError
from seqloom.core.masks import make_mask
from seqloom.models.characters import Characters
from seqloom.models.checks import can_check, check_fits, check_ids, read_size
from seqloom.models.decoding.crf import CRF


class Tag(nn.Module, metaclass=Checked):
    """Tag every step of a sequence: a layer and a linear head, optionally with a CRF over the tags.

    Args:
        layer: A layer with batch_first=True.
        tags: Number of tags.
        embed: Maps ids (B, T) to vectors (B, T, output_size), such as `Embed`; None if the input is features (B, T, D).
        characters: Maps the letters of each word to further features; needs `embed`.
        dropout: Dropout before and after the layer.
        crf: Whether to score whole chains of tags with a conditional random field.

    Raises:
        ValueError: If the parts do not fit together.

    Example:
        >>> model = seqloom.Tag(seqloom.GRU(8, 16, batch_first=True, bidirectional=True), tags=4, crf=True)
        >>> x, y = torch.randn(3, 5, 8), torch.randint(4, (3, 5))
        >>> model(x).shape, model.loss(x, y).shape, model.decode(x).shape
        (torch.Size([3, 5, 4]), torch.Size([]), torch.Size([3, 5]))
    """

    def __init__(
        self,
        layer: nn.Module,
        tags: int,
        *,
        embed: nn.Module | None = None,
        characters: Characters | None = None,
        dropout: float = 0.0,
        crf: bool = False,
    ) -> None:
        super().__init__()
        if embed is not None:
            check_fits(layer, "Tag", embed, characters)
        else:
            check_fits(layer, "Tag")
        self.embed, self.characters, self.layer, self.tags = embed, characters, layer, tags
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(read_size(layer, "output_size", "layer"), tags)
        self.crf = CRF(tags) if crf else None

    @property
    def reads_letters(self) -> bool:
        """Whether the model needs the letters of each word."""
        return self.characters is not None

    def forward(
        self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, letters: Tensor | None = None
    ) -> Tensor:
        """Return the scores (B, T, tags) of the linear head for features or ids x, and letters (B, T, C)."""
        if (letters is None) != (self.characters is None):
            raise InputError("letters= needs a Tag with characters=, and the other way round; give both or none")
        if lengths is not None:
            lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        parts = [x if self.embed is None else self.embed(x)]
        if self.characters is not None:
            parts.append(self.characters(letters))
        y, _ = self.layer(self.dropout(torch.cat(parts, -1)), lengths=lengths)
        return self.head(self.dropout(y))

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        letters: Tensor | None = None,
    ) -> Tensor:
        """Return the mean -log p of the true tags y (B, T) per step; tags past a row's length are ignored."""
        if y.shape != x.shape[:2]:
            raise InputError(f"y must hold a tag for each step, {tuple(x.shape[:2])}; got {tuple(y.shape)}")
        lengths = _read_lengths(lengths, y)
        real = make_mask(lengths, y.shape[1])
        if not y.numel() or (can_check(lengths) and not bool(real.any())):
            raise InputError(f"a loss needs at least one real step, got y of shape {tuple(y.shape)} and no length > 0")
        y = torch.where(real, y, torch.zeros_like(y))
        check_ids(y, self.tags, "tags y")
        scores = self(x, lengths, letters)
        if self.crf is not None:
            return -self.crf.log_likelihood(scores, y, lengths).sum() / real.sum()
        each = F.cross_entropy(scores.transpose(1, 2), y.long(), reduction="none")  # (B, T)
        return (each * real).sum() / real.sum()

    @torch.no_grad()
    def decode(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, letters: Tensor | None = None) -> Tensor:
        """Return the best tags (B, T), -1 past a row's length."""
        lengths = _read_lengths(lengths, x)
        scores = self(x, lengths, letters)
        if self.crf is not None:
            return self.crf.decode(scores, lengths)[0]
        real = make_mask(lengths, x.shape[1])
        return scores.argmax(-1).masked_fill(~real, -1)


def _read_lengths(lengths: Tensor | Sequence[int] | None, like: Tensor) -> Tensor:
    """Return the lengths (B,); all steps if there are none."""
    if lengths is None:
        return torch.full((like.shape[0],), like.shape[1], device=like.device)
    return read_lengths(lengths, like.shape[0], like.shape[1], like.device)
