"""Input formats of a layer: all are read as (B, T, D) with lengths, and results are returned in the caller's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from seqloom.core.cell import Cell, State
from seqloom.core.checks import own_for_backward, read_lengths, read_state
from seqloom.core.errors import InputError, UserTypeError
from seqloom.core.job import zero_padding
from seqloom.core.masks import make_mask
from seqloom.core.plurals import count

Sequences: TypeAlias = Tensor | PackedSequence
SequencesT = TypeVar("SequencesT", Tensor, PackedSequence)


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """A padded batch, and how to return results in the format of the input it was read from."""

    x: Tensor  # (B, T, D)
    lengths: Tensor | None  # (B,)
    batch_first: bool
    source: Sequences | None = None  # the input, if it was packed, nested or a single sequence
    order: Tensor | None = None  # (B,): the input row of each row here, if rows were moved
    inverse: Tensor | None = None

    @property
    def is_unbatched(self) -> bool:
        return isinstance(self.source, Tensor) and self.source.dim() == 2

    def restore(self, y: Tensor) -> Any:  # noqa: ANN401  # the type of the input
        """Convert outputs (B, T, H) to the format of the input."""
        if isinstance(self.source, PackedSequence):
            return _pack(y, self.source)
        if isinstance(self.source, Tensor) and self.source.is_nested:
            assert self.lengths is not None
            values = y[make_mask(self.lengths, y.shape[1])]
            return torch.nested.nested_tensor_from_jagged(values, _offsets(self.source))
        if self.is_unbatched:
            return y.squeeze(0)
        return y if self.batch_first else y.transpose(0, 1).contiguous()  # as torch's, which callers pass to view()

    def read_states(self, hx: Tensor | State | None, cells: list[Cell]) -> list[State] | None:
        """Convert a state in torch's format, (cells, N, ...), to one state (B, ...) for each cell."""
        if hx is None:
            return None
        expected = cells[0].initial_state(self.x[:, 0])
        rows = () if self.is_unbatched else (self.x.shape[0],)
        states = read_state(hx, [(len(cells), *rows, *e.shape[1:]) for e in expected], expected[0])
        if self.is_unbatched:
            states = tuple(s.unsqueeze(1) for s in states)
        elif self.order is not None:
            states = tuple(s.index_select(1, self.order) for s in states)
        states = tuple(s.to(e.dtype) for s, e in zip(states, expected, strict=True))
        return [tuple(s[i] for s in states) for i in range(len(cells))]

    def restore_states(self, ends: list[State]) -> Tensor | State:
        """Convert the last state of each cell to torch's format."""
        # a single cell needs no copy
        states = tuple(p[0].unsqueeze(0) if len(p) == 1 else torch.stack(p) for p in zip(*ends, strict=True))
        if self.is_unbatched:
            states = tuple(s.squeeze(1) for s in states)
        elif self.inverse is not None:
            states = tuple(s.index_select(1, self.inverse) for s in states)
        return states[0] if len(states) == 1 else states

    def read_per_step(self, name: str, values: Tensor | None, batch_first: bool) -> Tensor | None:
        """Convert `reset` or `timespans` to (B, T).

        Args:
            name: "reset" or "timespans".
            values: (B, T) or (T, B), (T,) for a single sequence, or None.
            batch_first: Whether values are (B, T); packed and nested inputs follow the layer's setting here.
        """
        if values is None:
            return None
        if not isinstance(values, Tensor):
            raise UserTypeError(
                f"{name} must be a Tensor (the input's shape without features), got a {type(values).__name__}"
            )
        if values.device != self.x.device:
            raise InputError(f"{name} is on {values.device}, the input on {self.x.device}; move one with .to()")
        values = own_for_backward(values)
        values = values.unsqueeze(0) if self.is_unbatched else values if batch_first else values.transpose(0, 1)
        expected = tuple(self.x.shape[:2])
        if tuple(values.shape) != expected:
            raise InputError(f"{name} must match the input's batch and time {expected}, got {tuple(values.shape)}")
        if self.order is not None:
            values = values.index_select(0, self.order)
        if name == "reset":
            return values.bool()
        return zero_padding(values.to(self.x.dtype), self.lengths)  # NaN there must not reach a gradient


def read_input(
    source: Sequences, lengths: Tensor | Sequence[int] | None, batch_first: bool, input_size: int, check: bool = False
) -> PaddedBatch:
    """Convert an input of any format to a padded batch.

    Args:
        source: (B, T, D) or (T, B, D), a single sequence (T, D), a PackedSequence, or a nested tensor (jagged).
        lengths: (B,), the real steps of each row, or None; packed and nested inputs have their own.
        batch_first: Whether a 3-D source is (B, T, D).
        input_size: The expected D.
        check: Whether to raise an error for NaN and infinity in real steps.

    Returns:
        The batch, with zeros past each row's length.

    Raises:
        UserTypeError: If the source is not a tensor or PackedSequence.
        InputError: If its shape or values do not fit.
    """
    if isinstance(source, PackedSequence):
        if lengths is not None:
            raise InputError("lengths were given with a PackedSequence, which has its own; leave one out")
        x, lengths = _unpack(source)
        batch = PaddedBatch(x, lengths, True, source, source.sorted_indices, source.unsorted_indices)
    elif not isinstance(source, Tensor):
        hint = "; give symbolic_trace's Tracer an is_leaf_module that returns True for this layer, or use torch.export"
        is_proxy = type(source).__module__ == "torch.fx.proxy"
        got = type(source).__name__ + (hint if is_proxy else "")
        raise UserTypeError(f"input must be a Tensor or a PackedSequence, got {got}")
    elif source.is_nested:
        if lengths is not None:
            raise InputError("lengths were given with a nested tensor, which has its own; leave one out")
        if source.layout != torch.jagged:
            raise InputError(f"a nested input must have layout torch.jagged, got {source.layout}")
        if cast(Any, source).lengths() is not None:
            raise InputError("a nested input with holes is not supported; make it contiguous first")
        x = torch.nested.to_padded_tensor(source, 0.0)
        batch = PaddedBatch(x, _offsets(source).diff(), True, source)
    elif source.dim() == 2:
        x = source.unsqueeze(0)
        batch = PaddedBatch(x, _read_lengths(lengths, x), batch_first, source)
    elif source.dim() == 3:
        x = source if batch_first else source.transpose(0, 1)
        batch = PaddedBatch(x, _read_lengths(lengths, x), batch_first)
    else:
        raise InputError(
            f"input must be 2-D (one sequence) or 3-D (a batch), got {source.dim()}-D {tuple(source.shape)}"
        )
    if batch.x.shape[-1] != input_size:
        raise InputError(f"input has {count(batch.x.shape[-1], 'feature')}, expected input_size={input_size}")
    if batch.x.shape[1] == 0:
        raise InputError(f"expected sequence length to be larger than 0, got an input of shape {tuple(batch.x.shape)}")
    if check:
        _check_finite(batch.x, batch.lengths, source.sorted_indices if isinstance(source, PackedSequence) else None)
    return replace(batch, x=zero_padding(batch.x, batch.lengths))  # NaN there must not reach a gradient


def _read_lengths(lengths: Tensor | Sequence[int] | None, x: Tensor) -> Tensor | None:
    return None if lengths is None else read_lengths(lengths, x.shape[0], x.shape[1], x.device)


def _check_finite(x: Tensor, lengths: Tensor | None, order: Tensor | None = None) -> None:
    """Raise an error if a real step holds NaN or infinity; `order` maps rows to those of the caller's batch."""
    bad = ~torch.isfinite(x).all(-1)
    if lengths is not None:
        bad &= make_mask(lengths, x.shape[1])
    if bool(bad.any()):
        row, step = (int(i) for i in bad.nonzero()[0])
        row = row if order is None else int(order[row])
        raise InputError(f"input has NaN or infinite values, first in row {row} at step {step}; mask or replace them")


def _offsets(nested: Tensor) -> Tensor:
    offsets: Tensor = cast(Any, nested).offsets()
    return offsets


def _unpack(packed: PackedSequence) -> tuple[Tensor, Tensor]:
    """Return x (B, T, D) with the rows in packed order, longest first, and their lengths."""
    x, lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes), batch_first=True)
    return x, lengths.to(x.device)


def _pack(y: Tensor, like: PackedSequence) -> PackedSequence:
    valid = torch.arange(y.shape[0]).unsqueeze(0) < like.batch_sizes.unsqueeze(1)  # (T, B)
    data = y.transpose(0, 1)[valid.to(y.device)]
    return PackedSequence(data, like.batch_sizes, like.sorted_indices, like.unsorted_indices)
