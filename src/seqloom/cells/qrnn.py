"""The quasi-recurrent network."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._two_inputs import TwoInputsCell
from seqloom.core.cell import State


class QRNNCell(TwoInputsCell, name="qrnn", year=2016, idea="linear", parent="lstm"):
    """An LSTM whose gates are convolutions over the last two inputs.

        z  = tanh(W_z x + V_z p)
        f  = sigmoid(W_f x + V_f p)
        o  = sigmoid(W_o x + V_o p)
        c' = f * c + (1 - f) * z
        h' = o * c'

    p is the input of the previous step, 0 at the start: a convolution of width 2. V p is computed with W x for all
    steps at once, so that the state keeps V p instead of p. State: h, which is not read, and c (B, H), and V p (B, 3H).
    Bradbury et al. 2016, Quasi-recurrent neural networks, arXiv 1611.01576.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
    """

    states, memory = 2, 1

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        z, f, o = self.read(x, state)
        return {"z": torch.tanh(z), "f": torch.sigmoid(f), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        _, c, _ = state
        _, Vx = x.chunk(2, -1)
        z, f, o = self.gates(x, state).values()
        c = f * c + (1 - f) * z
        h = o * c
        return h, (h, c, Vx)
