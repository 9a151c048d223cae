"""The rows of a ragged batch, the longest first: on a GPU, rows that are carried together then end together.

Kernels take a batch some rows at a time, in its order, and a part of the GPU is free again when the longest of them
ends. Where a batch takes several turns, the long rows go first and the short ones fill the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels.dispatch import choose
from seqloom.kernels.fused import why_not_fused
from seqloom.layers.formats import PaddedBatch

ROOM = 1 << 24  # for rows times units squared: above, rows take turns on a large GPU


def pays(batch: PaddedBatch, cell: Cell, kernel: str) -> bool:
    """Whether the order matters; a packed batch has it already."""
    if batch.lengths is None or batch.source is not None or not batch.x.is_cuda or torch.compiler.is_compiling():
        return False
    if why_not_fused() is not None or len(batch.x) * max(cell.hidden_size, 128) ** 2 <= ROOM:
        return False
    return choose(cell, ScanJob(batch.x, cell.start(batch.x), batch.lengths), kernel).kernel.skips_ended_rows


@dataclass(frozen=True, eq=False)
class Moved(PaddedBatch):
    """A batch whose rows stand in another order, and which gives outputs back in its own."""

    def restore(self, y: Tensor) -> Any:
        assert self.order is not None and self.inverse is not None
        return super().restore(moved(y, self.inverse, self.order))


def longest_first(batch: PaddedBatch) -> PaddedBatch:
    """The same batch with its longest row first."""
    assert batch.lengths is not None
    order = batch.lengths.argsort(descending=True, stable=True)
    inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    x, lengths = moved(batch.x, order, inverse), batch.lengths.index_select(0, order)
    return Moved(x, lengths, batch.batch_first, batch.source, order, inverse)


def moved(x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
    """The rows of x in this order."""
    y: Tensor = _Rows.apply(x, order, inverse)
    return y


class _Rows(torch.autograd.Function):
    """index_select, whose own backward adds where a permutation only has to move."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order, inverse)
        return x.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        order, inverse = ctx.saved_tensors
        return moved(dy, inverse, order), None, None
