"""The residual LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class ResLSTMCell(GatedCell, name="res_lstm", year=2017, idea="lstm", parent="peephole_lstm"):
    """A peephole LSTM whose output gate also passes the input on.

        i  = sigmoid(W_i x + U_i h + p_i * c)
        f  = sigmoid(W_f x + U_f h + p_f * c)
        g  = tanh(W_g x + U_g h)
        c' = f * c + i * g
        o  = sigmoid(W_o x + U_o h + p_o * c')
        h' = o * (P tanh(c') + R x)

    P and R have no bias. State: h and c (B, H). Kim et al. 2017, Residual LSTM: design of a deep recurrent architecture
    for distant speech recognition, arXiv 1701.03360.

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
        self.weight_p = empty(hidden_size, hidden_size)
        self.weight_r = empty(hidden_size, input_size)
        self.reset_parameters()

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([super().project(x), F.linear(x, self.weight_r)], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, c = state
        x, Rx = x.split((4 * self.hidden_size, self.hidden_size), -1)
        x_i, x_f, x_g, x_o = (x + self.product(apply_mask(h, mask))).chunk(4, -1)
        p_i, p_f, p_o = self.scale_c.chunk(3)
        i = torch.sigmoid(x_i + p_i * c)
        f = torch.sigmoid(x_f + p_f * c)
        g = torch.tanh(x_g)
        c = f * c + i * g
        o = torch.sigmoid(x_o + p_o * c)
        return {"i": i, "f": f, "g": g, "c": c, "o": o, "Rx": Rx}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, _, _, c, o, Rx = self.gates(x, state, mask).values()
        h = o * (F.linear(torch.tanh(c), self.weight_p) + Rx)
        return h, (h, c)
