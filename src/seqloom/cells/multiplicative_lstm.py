"""The multiplicative LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class MultiplicativeLSTMCell(GatedCell, name="multiplicative_lstm", year=2016, idea="lstm", parent="lstm"):
    """An LSTM whose recurrent matrix depends on the input.

        m  = (W_m x) * (V h)
        i  = sigmoid(W_i x + U_i m)
        f  = sigmoid(W_f x + U_f m)
        g  = tanh(W_g x + U_g m)
        o  = sigmoid(W_o x + U_o m)
        c' = f * c + i * g
        h' = o * tanh(c')

    State: h and c (B, H). Krause et al. 2016, Multiplicative LSTM for sequence modelling, arXiv 1609.07959.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to every product.
    """

    w, u, states = 5, 4, 2
    keep, enter = (2, 1, 1), (1, 0)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_hm = empty(hidden_size, hidden_size)
        self.bias_hm = empty(hidden_size) if bias else None
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        x_m, x = x.split((self.hidden_size, 4 * self.hidden_size), -1)
        m = x_m * F.linear(apply_mask(h, mask), self.weight_hm, self.bias_hm)
        i, f, g, o = (x + self.product(m)).chunk(4, -1)
        return {"m": m, "i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        _, i, f, g, o = self.gates(x, state, mask).values()
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, (h, c)
