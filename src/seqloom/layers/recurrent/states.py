"""What goes into a layer beside the input, checked and brought into the batch's own form."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_state
from seqloom.core.errors import InputError, UserTypeError
from seqloom.core.job import zero_padding
from seqloom.layers.formats import PaddedBatch


def states_in(hx: Tensor | State | None, batch: PaddedBatch, cells: list[Cell]) -> list[State] | None:
    """hx in torch's form -> one state for each cell."""
    if hx is None:
        return None
    expected = cells[0].initial_state(batch.x[:, 0])
    rows = () if batch.unbatched else (batch.x.shape[0],)
    given = read_state(hx, [(len(cells), *rows, *e.shape[1:]) for e in expected], expected[0])
    whole = [batch.state_in(s).to(e.dtype) for s, e in zip(given, expected, strict=True)]
    return [tuple(s[i] for s in whole) for i in range(len(cells))]


def states_out(ends: list[State], batch: PaddedBatch) -> Tensor | State:
    """The last state of each cell -> torch's form."""
    whole = tuple(batch.state_out(_stacked(parts)) for parts in zip(*ends, strict=True))
    return whole[0] if len(whole) == 1 else whole


def _stacked(parts: tuple[Tensor, ...]) -> Tensor:
    return parts[0].unsqueeze(0) if len(parts) == 1 else torch.stack(parts)  # the usual one needs no copy


def aside(name: str, given: Tensor, batch: PaddedBatch, batch_first: bool) -> Tensor:
    """reset or timespans, shaped as the input without its features -> (B, T)."""
    if not isinstance(given, Tensor):
        raise UserTypeError(
            f"{name} must be a Tensor (the input's shape without features), got a {type(given).__name__}"
        )
    if given.device != batch.x.device:
        raise InputError(f"{name} is on {given.device}, the input on {batch.x.device}; move one with .to()")
    given = given.unsqueeze(0) if batch.unbatched else given if batch_first else given.transpose(0, 1)
    if tuple(given.shape) != tuple(batch.x.shape[:2]):
        expected = tuple(batch.x.shape[:2])
        raise InputError(f"{name} must match the input's batch and time {expected}, got {tuple(given.shape)}")
    if batch.order is not None:
        given = given.index_select(0, batch.order)
    if name == "reset":
        return given.bool()
    return zero_padding(given.to(batch.x.dtype), batch.lengths)  # NaN there must not reach a gradient
