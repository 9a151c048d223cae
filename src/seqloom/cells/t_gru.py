"""The strongly typed GRU."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._two_inputs import TwoInputsCell
from seqloom.core.cell import State


class TGRUCell(TwoInputsCell, name="t_gru", year=2016, idea="linear", parent="t_rnn"):
    """A GRU whose gates read the last two inputs and no state.

        z  = W_z x + V_z p
        f  = sigmoid(W_f x + V_f p)
        o  = tanh(W_o x + V_o p)
        h' = f * h + z * o

    p is the input of the previous step, 0 at the start. V p is computed with W x for all steps at once, so that the
    state keeps V p instead of p. State: h (B, H), and V p (B, 3H). Balduzzi & Ghifary 2016, Strongly-typed recurrent
    neural networks, arXiv 1602.02218.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
    """

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        z, f, o = self.read(x, state)
        return {"z": z, "f": torch.sigmoid(f), "o": torch.tanh(o)}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        h, _ = state
        _, Vx = x.chunk(2, -1)
        z, f, o = self.gates(x, state).values()
        h = f * h + z * o
        return h, (h, Vx)
