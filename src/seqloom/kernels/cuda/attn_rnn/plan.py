"""A prepared call of AttnRNN's GPU kernels: a stack of cells over sequences of equal lengths, one graph node per cell.

Its owner compares what it depends on at every call (`layers/recurrent/plans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.kernels.cuda.attn_rnn.padded_cell import PaddedCell
from seqloom.kernels.cuda.attn_rnn.prepared_cell import PreparedCell
from seqloom.kernels.cuda.attn_rnn.scan import AttnRNNWeights, Tier, pad_head
from seqloom.kernels.stack import Stack


def why_not_plan(cells: Sequence[Cell], weights: Sequence[Tensor]) -> str | None:
    """Return why a stack of AttnRNN cells has no plan; None if it has one."""
    for cell in cells:
        if cell.slots > 1 or cell.input_norm:
            return "slots and normalised inputs have no prepared call"
        if cell.__dict__.get("learned_states") or not {"start", "initial_state", "project"}.isdisjoint(cell.__dict__):
            return "the initial state is learned or computed"
        if not set(cell.__dict__["_names"]) <= set(AttnRNNWeights._fields):
            return "the cell has weights that are not known here"
    if any(w.data_ptr() % 16 for w in weights):
        return "a weight does not begin at a multiple of 16 bytes"
    return None


class AttnRNNPlan:
    """Run a stack of AttnRNN cells over inputs of one shape.

    Args:
        stack: The cells, in one direction, and the form of the input.
        tiers: How each cell is divided over the GPU.
        weights: All weights of the stack.
        backend: The name of the first cell's kernel.
    """

    may_cover = False

    def __init__(self, stack: Stack, tiers: Sequence[Tier], weights: Sequence[Tensor], backend: str) -> None:
        self.backend, self.h_shapes = backend, stack.state_shapes
        padded = [pad_head(cell) * cell.heads != cell.hidden_size for cell in stack.cells]
        kinds = [PaddedCell if is_padded else PreparedCell for is_padded in padded]
        self.cells = [kind(stack, i, tier, weights) for i, (kind, tier) in enumerate(zip(kinds, tiers, strict=True))]

    def run(self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool) -> tuple[Tensor, Any]:
        """Run the stack; the arguments and results are those of `PreparedStack.run` (`kernels/cpu/prepared.py`)."""
        if len(self.cells) == 1:
            y, end = self.cells[0].run(x, states[0] if states else None, weights, train)
            return y, end
        ends = []
        for i, cell in enumerate(self.cells):
            x, end = cell.run(x, states[0][i : i + 1] if states else None, weights, train)
            ends.append(end)
        return x, torch.cat(ends)
