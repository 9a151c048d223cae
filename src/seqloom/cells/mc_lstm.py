"""The memory-controller LSTM."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class MCLSTMCell(GatedCell, name="mc_lstm", year=2017, idea="lstm", parent="lstm"):
    """An LSTM whose gates read a control vector instead of the output.

        f  = sigmoid(W_f x + U_f v)
        i  = sigmoid(W_i x + U_i v)
        o  = sigmoid(W_o x + U_o v)
        m  = sigmoid(W_m x + U_m v)
        g  = tanh(W_g x + U_g v)
        c' = f * c + i * g
        h' = o * tanh(c')
        v' = m * tanh(c')

    State: h, v and c (B, H); h is the output and is not read. For the LSTM that conserves mass see `mass_lstm`.
    Memory-controller LSTM, NIPS 2017 workshop on sequence modelling.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    memory = 1
    w, u, states = 5, 5, 3
    keep, enter = (0, 0, 1), (1, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        _, v, _ = state
        f, i, o, m, g = (x + self.product(apply_mask(v, mask))).chunk(5, -1)
        return {
            "f": torch.sigmoid(f),
            "i": torch.sigmoid(i),
            "o": torch.sigmoid(o),
            "m": torch.sigmoid(m),
            "g": torch.tanh(g),
        }

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, _, c = state
        f, i, o, m, g = self.gates(x, state, mask).values()
        c = f * c + i * g
        h = o * torch.tanh(c)
        v = m * torch.tanh(c)
        return h, (h, v, c)
