"""Sort the rows of a ragged batch on a GPU, longest first.

Kernels process a large batch some rows at a time, in order, and free their part of the GPU when the longest of these
rows ends. With long rows first, short ones fill the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from seqloom.core.cell import Cell
from seqloom.core.checks import SavedTensors
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty_like
from seqloom.kernels.dispatch import choose
from seqloom.kernels.fused import why_not_fused
from seqloom.layers.formats import PaddedBatch

GPU_CAPACITY = 1 << 24  # rows * units^2 that a large GPU runs at once; more rows are processed in turns


def is_large_batch(rows: int, units: int) -> bool:
    """Return whether even a large GPU cannot run this many rows at once."""
    return rows * max(units, 128) ** 2 > GPU_CAPACITY


def should_sort(batch: PaddedBatch, cell: Cell, kernel: str) -> bool:
    """Return whether sorting the rows makes the scan faster; a packed batch is sorted already."""
    if batch.lengths is None or batch.source is not None or not batch.x.is_cuda or torch.compiler.is_compiling():
        return False
    if why_not_fused() is not None or not is_large_batch(len(batch.x), cell.hidden_size):
        return False
    return choose(cell, ScanJob(batch.x, cell.start(batch.x), batch.lengths), kernel).kernel.skips_ended_rows


@dataclass(frozen=True, eq=False)
class SortedBatch(PaddedBatch):
    """A batch with sorted rows that returns its outputs in the caller's order."""

    def restore(self, y: Tensor) -> Any:  # noqa: ANN401  # the type of the input
        assert self.order is not None and self.inverse is not None
        return super().restore(permute_rows(y, self.inverse, self.order))


def sort_longest_first(batch: PaddedBatch) -> SortedBatch:
    """Return the same batch with its longest row first."""
    assert batch.lengths is not None
    order = batch.lengths.argsort(descending=True, stable=True)
    inverse = empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    x, lengths = permute_rows(batch.x, order, inverse), batch.lengths.index_select(0, order)
    return SortedBatch(x, lengths, batch.batch_first, batch.source, order, inverse)


def permute_rows(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """Return the rows of x in this order."""
    y: Tensor = _PermuteRows.apply(x, order, inverse)
    return y


class _PermuteRows(torch.autograd.Function):
    """index_select for a permutation: the backward pass moves rows, whereas torch's would accumulate them."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: SavedTensors, dy: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return permute_rows(dy, inverse, order), None, None
