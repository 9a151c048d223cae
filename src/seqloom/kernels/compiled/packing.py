"""The order in which compiled programs see a batch: longest row first, one step after the other, without padding."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from seqloom.core.memory import empty, empty_like
from seqloom.kernels.cpu.engine import load_library


@dataclass(frozen=True, eq=False)
class Packing:
    """Where the rows of each step are; N is the number of real steps of all rows.

    States are kept as (B + N, ...): the first ones, then the state after each packed row.

    Attributes:
        B: Rows of the batch.
        T: Steps of the longest row.
        length: Steps of the padded batch.
        count: (T,), the rows that have a step t.
        offset: (T,), the packed row at which step t begins.
        order: (B,), the batch's rows, longest first; None if all have the same length.
        place: (N,), where each packed row is in a batch that is flattened to (B * length, ...).
        row: (N,), the row in `order` of each packed row.
        before: (N,), where the state before each packed row is.
        last: (B,), where the last state of each row of `order` is.
        ends: (B,), where the last state of each row of the batch is.
        is_time_first: Whether what is packed lies in memory as (length, B, ...).
    """

    B: int
    T: int
    length: int
    count: Tensor
    offset: Tensor
    order: Tensor | None = None
    place: Tensor | None = None
    row: Tensor | None = None
    before: Tensor | None = None
    last: Tensor | None = None
    ends: Tensor | None = None
    is_time_first: bool = field(default=False, kw_only=True)

    @classmethod
    def of(
        cls,
        B: int,
        length: int,
        lengths: Tensor | None,
        device: torch.device | None = None,
        is_time_first: bool = False,
    ) -> Packing:
        """Compute the packing of a batch.

        The number of packed rows must be known to allocate memory, so lengths on a GPU are waited for, once.

        Args:
            B: Rows of the batch.
            length: Steps of the padded batch.
            lengths: (B,), the real steps of each row; None if all are real.
            device: Where programs run; None for the CPU.
            is_time_first: Whether what is packed lies in memory as (length, B, ...).
        """
        if lengths is None:
            return _pack_equal(B, length, device)
        lengths = lengths.to("cpu", torch.int64).contiguous()
        if (packed := _pack_by_engine(length, lengths, is_time_first)) is not None:
            T, indices = packed
            return cls(B, T, length, *_move(indices, device), is_time_first=is_time_first)
        lengths = lengths.clamp(0, length)
        order = torch.argsort(lengths, descending=True, stable=True)
        steps = lengths[order]
        T = int(steps[0]) if B else 0
        real = torch.arange(T).unsqueeze(1) < steps  # (T, B)
        count = real.sum(1)
        offset = count.cumsum(0) - count
        t, row = real.nonzero(as_tuple=True)
        before = torch.where(t == 0, row, B + offset[(t - 1).clamp(min=0)] + row)
        r = torch.arange(B)
        last = torch.where(steps == 0, r, B + offset[(steps - 1).clamp(min=0)] + r) if T else r
        place = t * B + order[row] if is_time_first else order[row] * length + t
        parts = count, offset, order, place, row, before, last, empty_like(last).index_copy_(0, order, last)
        return cls(B, T, length, *_move(parts, device), is_time_first=is_time_first)

    @cached_property
    def N(self) -> int:
        """The number of packed rows."""
        return self.B * self.T if self.place is None else len(self.place)

    def pack(self, x: Tensor) -> Tensor:
        """Pack (B, length, ...) into (N, ...)."""
        if self.place is None:
            return x.transpose(0, 1).reshape(self.N, *x.shape[2:])
        return self._flatten(x).index_select(0, self.place)

    def _flatten(self, x: Tensor) -> Tensor:
        """Stack the rows of all steps, (B, length, ...), in one dimension."""
        return (x.transpose(0, 1) if self.is_time_first else x).flatten(0, 1)

    def pack_steps(self, x: Tensor) -> Tensor:
        """Pack (B, length, ...) as `pack` does, with two dimensions for the rows: (T, B, ...) or (N, 1, ...)."""
        if self.place is None:
            return x.transpose(0, 1).contiguous()
        return self._flatten(x).index_select(0, self.place).unsqueeze(1)

    def unpack_steps(self, packed: Tensor) -> Tensor:
        """Undo `pack_steps`, with zeros as padding."""
        return packed.transpose(0, 1) if self.place is None else self.unpack(packed.squeeze(1))

    def unpack(self, packed: Tensor) -> Tensor:
        """Unpack (N, ...) into (B, length, ...), with zeros as padding."""
        if self.place is None:
            return packed.reshape(self.T, self.B, *packed.shape[1:]).transpose(0, 1)
        whole = packed.new_zeros(self.B * self.length, *packed.shape[1:]).index_copy_(0, self.place, packed)
        if self.is_time_first:
            return whole.view(self.length, self.B, *packed.shape[1:]).transpose(0, 1)
        return whole.view(self.B, self.length, *packed.shape[1:])

    def sort(self, rows: Tensor) -> Tensor:
        """Put (B, ...) into the order of the packing."""
        return rows if self.order is None else rows.index_select(0, self.order)

    def unsort(self, rows: Tensor) -> Tensor:
        """Put (B, ...) back into the order of the batch."""
        return rows if self.order is None else empty_like(rows).index_copy_(0, self.order, rows)

    def spread(self, rows: Tensor) -> Tensor:
        """Repeat sorted rows (B, ...) for every packed row: (N, ...)."""
        if self.row is None:
            return rows.expand(self.T, *rows.shape).flatten(0, 1)
        return rows.index_select(0, self.row)

    def add_up(self, packed: Tensor) -> Tensor:
        """Sum (N, ...) over the steps of each row: (B, ...), sorted."""
        if self.row is None:
            return packed.unflatten(0, (self.T, self.B)).sum(0)
        return self.sort(self.unpack(packed).sum(1))  # deterministic on GPUs, where index_add is not

    def states_before(self, states: Tensor) -> Tensor:
        """Gather the state before each packed row from (B + N, ...)."""
        return states[: self.N] if self.before is None else states.index_select(0, self.before)

    def take_ends(self, states: Tensor) -> Tensor:
        """Copy the last state of each row of the batch from (B + N, ...)."""
        if self.ends is None:
            return states.narrow(0, self.N, self.B).clone()
        return states.index_select(0, self.ends)

    def put_last(self, states: Tensor, rows: Tensor | None) -> None:
        """Write the last state of each row into (B + N, ...); zeros for None."""
        place = slice(self.N, None) if self.last is None else self.last
        states[place] = 0 if rows is None else self.sort(rows)


@cache
def _load_engine() -> tuple[Any, Any] | None:
    """Return the functions of the engine that measure and fill a packing; None without the engine."""
    engine = load_library()
    if isinstance(engine, str) or not hasattr(engine, "seqloom_fill_packing"):
        return None
    measure, fill = engine.seqloom_measure_packing, engine.seqloom_fill_packing
    address, number = ctypes.c_void_p, ctypes.c_int64
    measure.restype, measure.argtypes = None, [address, number, number, address]
    fill.argtypes = [address, number, number, ctypes.c_int, number, number, address]
    return measure, fill


def _pack_by_engine(length: int, lengths: Tensor, is_time_first: bool) -> tuple[int, Sequence[Tensor]] | None:
    """Return the longest length and the indices of a packing, computed by the engine; None without an engine."""
    functions = _load_engine()
    if functions is None:
        return None
    measure, fill = functions
    B, rows, size = len(lengths), lengths.data_ptr(), array("q", (0, 0))
    measure(rows, B, length, size.buffer_info()[0])
    T, N = size
    parts = T, T, B, N, N, N, B, B
    numbers = empty(sum(parts), dtype=torch.int64, device="cpu")
    if fill(rows, B, length, is_time_first, T, N, numbers.data_ptr()):
        raise RuntimeError("lengths was changed while a layer read it; give each thread a tensor of its own")
    return T, torch.split_with_sizes(numbers, parts)


def _move(indices: Sequence[Tensor], device: torch.device | None) -> Sequence[Tensor]:
    """Copy tensors to a device in one transfer, without waiting for it."""
    if device is None or device.type == "cpu":
        return indices
    whole = torch.cat(list(indices))
    if device.type == "cuda":
        whole = whole.pin_memory()
    return whole.to(device, non_blocking=True).split([len(t) for t in indices])


@lru_cache(maxsize=64)
def _pack_equal(B: int, length: int, device: torch.device | None) -> Packing:
    """Return the packing of rows of equal length; it is cached by shape."""
    offset = torch.arange(length, device=device) * B
    return Packing(B, length, length, torch.full((length,), B, device=device), offset)
