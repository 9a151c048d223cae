"""An LSTM whose gates see the memory."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class PeepholeLSTMCell(GatedCell, name="peephole_lstm", year=2002, idea="lstm", parent="lstm"):
    """An LSTM whose gates also see the memory, each unit its own.

        i  = sigmoid(W_i x + U_i h + p_i * c)
        f  = sigmoid(W_f x + U_f h + p_f * c)
        g  = tanh(W_g x + U_g h)
        c' = f * c + i * g
        o  = sigmoid(W_o x + U_o h + p_o * c')
        h' = o * tanh(c')

    State: h and c (B, H). Gers et al. 2002, Learning precise timing with LSTM recurrent networks, JMLR 3.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u, states = 4, 4, 2
    keep, enter = (1, 1, 1), (0, 0)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.scale_c = empty(3 * hidden_size)
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, c = state
        x_i, x_f, x_g, x_o = (x + self.product(apply_mask(h, mask))).chunk(4, -1)
        p_i, p_f, p_o = self.scale_c.chunk(3)
        i = torch.sigmoid(x_i + p_i * c)
        f = torch.sigmoid(x_f + p_f * c)
        g = torch.tanh(x_g)
        c = f * c + i * g
        o = torch.sigmoid(x_o + p_o * c)
        return {"i": i, "f": f, "g": g, "c": c, "o": o}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, _, _, c, o = self.gates(x, state, mask).values()
        h = o * torch.tanh(c)
        return h, (h, c)
