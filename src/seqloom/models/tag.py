"""N to N: a tag for every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError
from seqloom.core.masks import make_mask
from seqloom.models.characters import Characters
from seqloom.models.checks import can_check, check_fits, check_ids
from seqloom.models.decoding.crf import CRF


class Tag(nn.Module):
    """A layer and a linear score for each tag at each step; with `crf`, chains of tags are scored as wholes.

    The input is features (B, T, D), or ids (B, T) where there is an `embed`; any module with an
    output_size that makes (B, T, output_size) will do. With `characters`, the letters (B, T, C) of
    every word give more features beside them.
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
        self.head = nn.Linear(layer.output_size, tags)  # type: ignore[arg-type]
        self.crf = CRF(tags) if crf else None

    def forward(
        self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, letters: Tensor | None = None
    ) -> Tensor:
        """-> scores (B, T, tags), before any chain is considered."""
        if (letters is None) != (self.characters is None):
            raise InputError("letters go with characters: give both, the one to Tag(...) and the other here, or none")
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
        """-log p of the right tags y (B, T), a step: what lies past a length does not matter."""
        if y.shape != x.shape[:2]:
            raise InputError(f"y must hold a tag for each step, {tuple(x.shape[:2])}; got {tuple(y.shape)}")
        lengths = _lengths(lengths, y)
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
        """The best tags (B, T), -1 past a row's length."""
        lengths = _lengths(lengths, x)
        scores = self(x, lengths, letters)
        if self.crf is not None:
            return self.crf.decode(scores, lengths)[0]
        real = make_mask(lengths, x.shape[1])
        return scores.argmax(-1).masked_fill(~real, -1)


def _lengths(lengths: Tensor | Sequence[int] | None, like: Tensor) -> Tensor:
    """(B,): as given, or every step."""
    if lengths is None:
        return torch.full((like.shape[0],), like.shape[1], device=like.device)
    return read_lengths(lengths, like.shape[0], like.shape[1], like.device)
