"""The recurrent additive network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class RANCell(GatedCell, name="ran", year=2017, idea="one gate", parent="lstm"):
    """An LSTM whose memory is a weighted sum of linear inputs.

        g  = W_g x                          without a bias
        i  = sigmoid(W_i x + U_i h)
        f  = sigmoid(W_f x + U_f h)
        c' = i * g + f * c
        h' = tanh(c')

    State: h and c (B, H). Lee et al. 2017, Recurrent additive networks, arXiv 1705.07393.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u, states = 3, 2, 2
    keep = (1, 1, 1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.reset_parameters()

    def project(self, x: Tensor) -> Tensor:
        W_g, W_if = self.weight_ih.split((self.hidden_size, 2 * self.hidden_size))
        return torch.cat([F.linear(x, W_g), F.linear(x, W_if, self.bias_ih)], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        g, x_i, x_f = x.chunk(3, -1)
        h_i, h_f = self.product(apply_mask(h, mask)).chunk(2, -1)
        i = torch.sigmoid(x_i + h_i)
        f = torch.sigmoid(x_f + h_f)
        return {"g": g, "i": i, "f": f}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        g, i, f = self.gates(x, state, mask).values()
        c = i * g + f * c
        h = torch.tanh(c)
        return h, (h, c)
