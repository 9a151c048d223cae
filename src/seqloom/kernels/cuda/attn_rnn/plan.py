"""A prepared call of AttnRNN's GPU kernels: a stack of cells over sequences of equal lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty, new_empty
from seqloom.kernels.cuda.attn_rnn.scan import AttnRNNKernel, AttnRNNScan, AttnRNNWeights, read_padded
from seqloom.kernels.cuda.runtime.prepared_cell import PreparedCell
from seqloom.kernels.kernel_plan import StackPlan
from seqloom.kernels.stack import Stack, why_not_start


def why_not_plan(cells: Sequence[Cell], weights: Sequence[Tensor]) -> str | None:
    """Return why a stack of AttnRNN cells has no plan; None if it has one."""
    for cell in cells:
        if cell.slots > 1 or cell.input_norm:
            return "slots and normalised inputs have no prepared call"
        if (reason := why_not_start(cell)) is not None:
            return reason
        if not set(cell.__dict__["_names"]) <= set(AttnRNNWeights._fields):
            return "the cell has weights that are not known here"
    if any(w.data_ptr() % 16 for w in weights):
        return "a weight does not begin at a multiple of 16 bytes"
    return None


class AttnRNNPlan(StackPlan):
    """Run a stack of AttnRNN cells over inputs of one shape.

    Args:
        stack: The cells, in one direction, and the form of the input.
        kernels: How each cell is divided over the GPU.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
    """

    def __init__(self, stack: Stack, kernels: Sequence[AttnRNNKernel], weights: Sequence[Tensor], backend: str) -> None:
        cells = [_prepare(stack, i, kernel, weights) for i, kernel in enumerate(kernels)]
        super().__init__(stack, cells, backend)


def _prepare(stack: Stack, index: int, kernel: AttnRNNKernel, weights: Sequence[Tensor]) -> PreparedCell:
    """Return one cell of a stack. Padding and its removal are small launches, so a padded forward is recorded, too."""
    cell, names, like = stack.cells[index], stack.names[index], weights[0].detach()
    indices = [names.get(name) for name in AttnRNNWeights._fields]
    B, T, D, size = stack.B, stack.T, cell.input_size, like.dtype.itemsize
    setting = read_padded(cell, ScanJob(new_empty(like, B, T, D), ()))
    H, mine = setting.hidden, {name: i for i, name in enumerate(AttnRNNWeights._fields) if name in names}
    one = Stack([cell], [mine], torch.Size((*stack.shape[:-1], D)), stack.batch_first, 1)
    own = AttnRNNWeights(*(None if i is None else weights[i] for i in indices))
    scan = AttnRNNScan(kernel, setting, one, like.device, own)
    steps = kernel.count_steps(empty(B, T, H, dtype=like.dtype, device="meta"), setting.slots)
    forward = (4 * H + D) * B * T * size if setting.real_head else None
    back = ((5 * T + 16 * steps) * H + 2 * T * D) * B * size
    return PreparedCell(scan, indices, weights, (forward, back))
