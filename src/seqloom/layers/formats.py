"""The forms in which a batch of sequences may come, all read as (B, T, D) with lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserTypeError
from seqloom.core.job import zero_padding
from seqloom.core.masks import make_mask


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """(B, T, D) with lengths, and how to give results back in the form the input had."""

    x: Tensor
    lengths: Tensor | None
    batch_first: bool
    source: Any = None  # the packed or nested input
    order: Tensor | None = None  # (B,): which row of the input stands here, where the rows have been moved
    inverse: Tensor | None = None

    @property
    def unbatched(self) -> bool:
        return isinstance(self.source, Tensor) and self.source.dim() == 2

    @property
    def packed(self) -> bool:
        return isinstance(self.source, PackedSequence)

    def restore(self, y: Tensor) -> Any:
        """Outputs (B, T, H) in the input's form."""
        if self.packed:
            return _pack(y, self.source)
        if isinstance(self.source, Tensor) and self.source.is_nested:
            assert self.lengths is not None
            values = y[make_mask(self.lengths, y.shape[1])]
            return torch.nested.nested_tensor_from_jagged(values, _offsets(self.source))
        if self.unbatched:
            return y.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1).contiguous()  # so are torch's: people call view

    def state_in(self, s: Tensor) -> Tensor:
        """(L, N, ...) as given -> (L, B, ...) in the batch's own order."""
        if self.unbatched:
            return s.unsqueeze(1)
        return s if self.order is None else s.index_select(1, self.order)

    def state_out(self, s: Tensor) -> Tensor:
        if self.unbatched:
            return s.squeeze(1)
        return s if self.inverse is None else s.index_select(1, self.inverse)


def read(
    source: Any, lengths: Tensor | Sequence[int] | None, batch_first: bool, input_size: int, check: bool = False
) -> PaddedBatch:
    """Take an input apart, or say what is wrong with it."""
    if isinstance(source, PackedSequence):
        if lengths is not None:
            raise InputError("lengths were given beside a PackedSequence, which has its own; give one of them")
        x, lengths = _unpack(source)
        batch = PaddedBatch(x, lengths, True, source, source.sorted_indices, source.unsorted_indices)
    elif not isinstance(source, Tensor):
        raise UserTypeError(f"input must be a Tensor or a PackedSequence, got {type(source).__name__}")
    elif source.is_nested:
        if lengths is not None:
            raise InputError("lengths were given beside a nested tensor, which has its own; give one of them")
        if source.layout != torch.jagged:
            raise InputError(f"a nested input must have layout torch.jagged, got {source.layout}")
        if cast(Any, source).lengths() is not None:
            raise InputError("a nested input with holes is not supported; make it contiguous first")
        x = torch.nested.to_padded_tensor(source, 0.0)
        batch = PaddedBatch(x, _offsets(source).diff(), True, source)
    elif source.dim() == 2:
        x = source.unsqueeze(0)
        batch = PaddedBatch(x, _lengths(lengths, x), batch_first, source)
    elif source.dim() == 3:
        x = source if batch_first else source.transpose(0, 1)
        batch = PaddedBatch(x, _lengths(lengths, x), batch_first)
    else:
        raise InputError(
            f"input must be 2-D (one sequence) or 3-D (a batch), got {source.dim()}-D {tuple(source.shape)}"
        )
    if batch.x.shape[-1] != input_size:
        raise InputError(f"input has {batch.x.shape[-1]} features, expected input_size={input_size}")
    if batch.x.shape[1] == 0:
        raise InputError(f"expected sequence length to be larger than 0, got an input of shape {tuple(batch.x.shape)}")
    if check:
        check_finite(batch.x, batch.lengths, source.sorted_indices if batch.packed else None)
    return replace(batch, x=zero_padding(batch.x, batch.lengths))  # NaN there must not reach a gradient


def _lengths(lengths: Tensor | Sequence[int] | None, x: Tensor) -> Tensor | None:
    return None if lengths is None else read_lengths(lengths, x.shape[0], x.shape[1], x.device)


def check_finite(x: Tensor, lengths: Tensor | None, order: Tensor | None = None) -> None:
    """Raise where a real step holds NaN or infinity; `order` are the rows' places in the user's batch."""
    bad = ~torch.isfinite(x).all(-1)
    if lengths is not None:
        bad &= make_mask(lengths, x.shape[1])
    if bool(bad.any()):
        row, step = (int(i) for i in bad.nonzero()[0])
        row = row if order is None else int(order[row])
        raise InputError(f"input has NaN or infinite values, first in row {row} at step {step}; mask or replace them")


def _offsets(nested: Any) -> Tensor:
    return nested.offsets()


def _unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Rows in the packed order, longest first."""
    x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes), batch_first=True)
    return x, lengths.to(x.device)


def _pack(y: Tensor, like: PackedSequence) -> PackedSequence:
    valid = torch.arange(y.shape[0]).unsqueeze(0) < like.batch_sizes.unsqueeze(1)  # (T, B)
    data = y.transpose(0, 1)[valid.to(y.device)]
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)
