"""A prepared call of the gated GPU kernels: a stack of RNN, GRU or LSTM cells, with heads, normalised or neither.

The kernels, their arguments and the places of the weights are found when a plan
is made. The owner of a plan compares what it depends on at every call (`layers/recurrent/plans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.heads import GROUP, GatedHeads
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated
from seqloom.kernels.cuda.gated.prepared import OWN, PreparedGated, read_head
from seqloom.kernels.stack import Stack


def why_not_plan(cells: Sequence[Cell], rows: int) -> str | None:
    """Return why a stack of gated cells has no plan for a batch of this size; None if it has one."""
    for cell in cells:
        one = read_head(cell)
        if one.name not in KINDS or (one is not cell and KINDS[one.name].norm):
            return "only RNN, GRU and LSTM have a prepared call, with heads or normalised"
        if one is not cell and rows % GROUP:
            return "the rows of heads are padded in every call"
        if one is not cell and one.hidden_size % heuristics.HIDDEN_MULTIPLE:
            return "heads are not padded"
        if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
            return "the initial state is learned or computed"
        if not set(cell.__dict__["_names"]) <= set(OWN):
            return "the cell has weights that are not known here"
    return None


class GatedPlan:
    """Run a stack of gated cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input.
        codes: The kernel of each cell.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
        dtype: The type that autocast computes in; that of the weights if omitted.
        dropout: Share of the outputs of every layer but the last that is dropped.
    """

    def __init__(
        self,
        stack: Stack,
        codes: Sequence[Gated | GatedHeads],
        weights: Sequence[Tensor],
        backend: str,
        dtype: torch.dtype | None = None,
        dropout: float = 0.0,
    ) -> None:
        self.backend, self.h_shapes, self.dropout = backend, stack.state_shapes, dropout
        self.B, self.T, self.ways = stack.B, stack.T, stack.ways
        self.cells = [PreparedGated(stack, i, code, weights, dtype) for i, code in enumerate(codes)]

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `StackPlan.run`."""
        ends = []
        for begin in range(0, len(self.cells), self.ways):
            if begin and self.dropout:
                x = F.dropout(x, self.dropout)
            outputs = []
            for i in range(begin, begin + self.ways):
                own = [s[i : i + 1] for s in states] if len(self.cells) > 1 else states
                y, *end = self.cells[i].run(x, own, weights, train, lengths)
                outputs.append(y)
                ends.append(end)
            x = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        last = ends[0] if len(ends) == 1 else [torch.cat(parts) for parts in zip(*ends, strict=True)]
        return x, last[0] if len(last) == 1 else tuple(last)
