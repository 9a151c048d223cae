"""Prepared calls of the gated GPU kernels: a stack of RNN, GRU or LSTM cells, with heads, normalised or neither."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.weights import bind_weights
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated, count_heads, read_head, read_options
from seqloom.kernels.cuda.gated.layout import Layout
from seqloom.kernels.cuda.gated.scan import BoundScan, GatedForm, GatedWeights, prepare
from seqloom.kernels.cuda.runtime.prepared_cell import PreparedCell
from seqloom.kernels.kernel_plan import StackPlan
from seqloom.kernels.stack import Stack, why_not_start


def why_not_plan(cells: Sequence[Cell]) -> str | None:
    """Return why a stack of gated cells has no plan; None if it has one."""
    for cell in cells:
        one = read_head(cell)
        if one.name not in KINDS or (one is not cell and KINDS[one.name].norm):
            return "only RNN, GRU and LSTM have a prepared call, with heads or normalised"
        if one is not cell and one.hidden_size % heuristics.HIDDEN_MULTIPLE:
            return "heads are not padded"
        if (reason := why_not_start(cell)) is not None:
            return reason
        if not set(cell.__dict__["_names"]) <= set(GatedWeights._fields):
            return "the cell has weights that are not known here"
    return None


class GatedPlan(StackPlan):
    """Run a stack of gated cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input; with two ways every second cell reads backwards.
        codes: The kernel of each cell.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
        dtype: The type that autocast computes in; that of the weights if omitted.
        dropout: Share of the outputs of every layer but the last that is dropped.
    """

    def __init__(
        self,
        stack: Stack,
        codes: Sequence[Gated],
        weights: Sequence[Tensor],
        backend: str,
        dtype: torch.dtype | None = None,
        dropout: float = 0.0,
    ) -> None:
        cells = [_prepare(stack, i, code, weights, dtype or weights[0].dtype) for i, code in enumerate(codes)]
        super().__init__(stack, cells, backend, dropout, may_cover=True)


def _prepare(stack: Stack, index: int, code: Gated, weights: Sequence[Tensor], dtype: torch.dtype) -> PreparedCell:
    """Return one cell of a stack."""
    cell, names, like = stack.cells[index], stack.names[index], weights[0]
    one, heads = read_head(cell), count_heads(cell)
    setting, is_backwards = read_options(one, dtype, code.grid), stack.ways == 2 and index % 2 == 1
    shape, hidden = torch.Size((*stack.shape[:-1], cell.input_size)), setting.hidden
    layout = Layout(shape, stack.batch_first, heads, one.hidden_size, hidden, is_backwards)
    scan = BoundScan(prepare(GatedForm(setting, layout, like.device)), partial(bind_weights, cell))
    kind, width, size = setting.kind, cell.input_size // heads, layout.rows * layout.T * dtype.itemsize
    gates, H = kind.gates * (1 + kind.norm) * hidden, hidden
    forward = size * (2 * gates + 2 * (1 + kind.states) * H + 2 * width)
    back = size * (4 * gates + (4 + kind.states) * H + 3 * width)
    indices = [names.get(name) for name in GatedWeights._fields]
    return PreparedCell(scan, indices, weights, (forward, back), is_cast=dtype != like.dtype)
