"""An LSTM with working memory connections."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class WMCLSTMCell(GatedCell, name="wmc_lstm", year=2021, idea="lstm", parent="peephole_lstm"):
    """An LSTM whose gates see the whole memory through a bounded product.

        i  = sigmoid(W_i x + U_i h + tanh(V_i c))
        f  = sigmoid(W_f x + U_f h + tanh(V_f c))
        g  = tanh(W_g x + U_g h)
        c' = f * c + i * g
        o  = sigmoid(W_o x + U_o h + tanh(V_o c'))
        h' = o * tanh(c')

    State: h and c (B, H). Landi et al. 2021, Working memory connections for LSTM, arXiv 2109.00020.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to every product.
    """

    w, u, states = 4, 4, 2
    keep, enter = (1, 1, 1), (0, 0)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_ch = empty(3 * hidden_size, hidden_size)
        self.bias_ch = empty(3 * hidden_size) if bias else None
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, c = state
        H = self.hidden_size
        V_if, V_o = self.weight_ch.split((2 * H, H))
        b_if, b_o = (None, None) if self.bias_ch is None else self.bias_ch.split((2 * H, H))
        x_i, x_f, x_g, x_o = (x + self.product(apply_mask(h, mask))).chunk(4, -1)
        c_i, c_f = torch.tanh(F.linear(c, V_if, b_if)).chunk(2, -1)
        i = torch.sigmoid(x_i + c_i)
        f = torch.sigmoid(x_f + c_f)
        g = torch.tanh(x_g)
        c = f * c + i * g
        o = torch.sigmoid(x_o + torch.tanh(F.linear(c, V_o, b_o)))
        return {"i": i, "f": f, "g": g, "c": c, "o": o}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, _, _, c, o = self.gates(x, state, mask).values()
        h = o * torch.tanh(c)
        return h, (h, c)
