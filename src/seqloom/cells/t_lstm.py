"""The strongly typed LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class TLSTMCell(Cell, name="t_lstm", year=2016, idea="linear", parent="t_rnn"):
    """An LSTM whose gates read the last two inputs and no state.

        z  = W_z x + V_z p
        f  = sigmoid(W_f x + V_f p)
        o  = tanh(W_o x + V_o p)
        c' = f * c + (1 - f) * z
        h' = c' * o

    p is the input of the step before, 0 at the start. V p is computed with W x for all steps at once, so that the state
    keeps V p instead of p. State: h, which is not read, and c (B, H), and V p (B, 3H). Balduzzi & Ghifary 2016,
    Strongly-typed recurrent neural networks, arXiv 1602.02218.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
    """

    memory = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.weight_ph = empty(3 * hidden_size, input_size)
        self.bias_ih = empty(3 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        init_linear(self.weight_ph)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = bias

    def initial_state(self, x: Tensor) -> State:
        B, H = x.shape[0], self.hidden_size
        return x.new_zeros(B, H), x.new_zeros(B, H), x.new_zeros(B, 3 * H)

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, self.weight_ih, self.bias_ih), F.linear(x, self.weight_ph)], -1)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        Wx, _ = x.chunk(2, -1)
        z, f, o = (Wx + state[-1]).chunk(3, -1)
        return {"z": z, "f": torch.sigmoid(f), "o": torch.tanh(o)}

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        _, c, _ = state
        _, Vx = x.chunk(2, -1)
        z, f, o = self.gates(x, state).values()
        c = f * c + (1 - f) * z
        h = c * o
        return h, (h, c, Vx)
