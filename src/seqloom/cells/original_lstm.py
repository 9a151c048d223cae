"""The LSTM of 1997, without a forget gate."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class OriginalLSTMCell(GatedCell, name="original_lstm", year=1997, idea="lstm", parent="rnn"):
    """The first LSTM: input and output gates, and a memory that only adds.

        i  = sigmoid(W_i x + U_i h)
        g  = tanh(W_g x + U_g h)
        o  = sigmoid(W_o x + U_o h)
        c' = c + i * g
        h' = o * tanh(c')

    The paper squashes with 4 sigmoid(a) - 2 and 2 sigmoid(a) - 1, which are 2 tanh(a / 2) and tanh(a / 2): the same
    function with other scales of the weights. State: h and c (B, H). Hochreiter & Schmidhuber 1997, Long short-term
    memory, doi 10.1162/neco.1997.9.8.1735.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u, states = 3, 3, 2

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        i, g, o = (x + self.product(apply_mask(h, mask))).chunk(3, -1)
        return {"i": torch.sigmoid(i), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        i, g, o = self.gates(x, state, mask).values()
        c = c + i * g
        h = o * torch.tanh(c)
        return h, (h, c)
