"""A prepared call of the gated GPU kernels: a stack of RNN, GRU or LSTM cells, with heads, normalised or neither.

All sequences have the same length. The kernels, their arguments and the places of the weights are found when a plan
is made. The owner of a plan compares what it depends on at every call (`layers/recurrent/plans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.kernels import tuning
from seqloom.kernels.cuda.gated.heads import GROUP, GatedHeads
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated
from seqloom.kernels.cuda.gated.prepared import OWN, PreparedGated, read_head
from seqloom.kernels.stack import Stack


def why_not_plan(cells: Sequence[Cell], rows: int) -> str | None:
    """Return why a stack of gated cells has no plan for a batch of so many rows; None if it has one."""
    for cell in cells:
        one = read_head(cell)
        if one.name not in KINDS or (one is not cell and KINDS[one.name].norm):
            return "only RNN, GRU and LSTM have a prepared call, with heads or normalised"
        if one is not cell and rows % GROUP:
            return "the rows of heads are padded in every call"
        if one is not cell and one.hidden_size % tuning.HIDDEN_MULTIPLE:
            return "heads are not padded"
        if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
            return "the initial state is learned or computed"
        if not set(cell.__dict__["_names"]) <= set(OWN):
            return "the cell has weights that are not known here"
    return None


class GatedPlan:
    """Run a stack of gated cells over inputs of one shape.

    Args:
        stack: The cells, in one direction, and the form of the input.
        codes: The kernel of each cell.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
        dtype: The type that autocast computes in; that of the weights if omitted.
    """

    def __init__(
        self,
        stack: Stack,
        codes: Sequence[Gated | GatedHeads],
        weights: Sequence[Tensor],
        backend: str,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.backend, self.h_shapes = backend, stack.state_shapes
        self.cells = [PreparedGated(stack, i, code, weights, dtype) for i, code in enumerate(codes)]

    def run(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `StackPlan.run`."""
        ends = []
        for i, cell in enumerate(self.cells):
            own = [s[i : i + 1] for s in states] if len(self.cells) > 1 else states
            x, *end = cell.run(x, own, weights, train)
            ends.append(end)
        last = ends[0] if len(ends) == 1 else [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return x, last[0] if len(last) == 1 else tuple(last)
