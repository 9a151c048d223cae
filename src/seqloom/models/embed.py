"""Words, characters or symbols as vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError


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


def check_ids(ids: Tensor, size: int, what: str, first: int = 0) -> None:
    """Raise where an id is not one of the `size` from `first` on, and say which and where."""
    if ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
        raise InputError(f"{what} must be whole numbers, got {ids.dtype}; convert them with .long()")
    if not looked_at(ids):
        return
    wrong = (ids < first) | (ids >= first + size)
    if bool(wrong.any()):
        place = tuple(int(i) for i in wrong.nonzero()[0])
        raise InputError(
            f"{what} must lie between {first} and {first + size - 1} (a vocabulary of {size}), "
            f"got {int(ids[place])} at {place}"
        )


def looked_at(x: Tensor) -> bool:
    """Whether values are checked: not on a GPU, where the look makes the host wait, nor in a graph, which has none."""
    plain = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    return x.device.type == "cpu" and plain


def check_fits(layer: nn.Module, model: str, *before: nn.Module | None) -> None:
    """The layer takes (B, T, D), with the D that the parts before it give."""
    if not getattr(layer, "batch_first", True):
        raise UserError(f"{model} takes a layer with batch_first=True")
    widths: list[int] = [part.output_size for part in before if part is not None]  # type: ignore[misc]
    if widths and sum(widths) != layer.input_size:
        raise UserError(
            f"the embedding gives {' + '.join(map(str, widths))} features, the layer has input_size={layer.input_size}"
        )
