"""Long short-term memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, can_use_torch, empty, set_gate
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class LSTMCell(Cell, name="lstm", year=2000, idea="lstm", parent="original_lstm"):
    """A memory c with input, forget and output gates.

        i  = sigmoid(W_i x + U_i h)
        f  = sigmoid(W_f x + U_f h)
        g  = tanh(W_g x + U_g h)
        o  = sigmoid(W_o x + U_o h)
        c' = f * c + i * g
        h' = o * tanh(c')            with proj_size: h' = R (o * tanh(c'))

    The concatenated form f = sigmoid(W [h, x] + b) is the same function: W is [U W], and the two biases of torch's
    layout add up to b. State: h (B, H), or (B, proj_size), and c (B, H).
    Hochreiter & Schmidhuber 1997, doi 10.1162/neco.1997.9.8.1735; the forget gate is that of
    Gers et al. 2000, doi 10.1162/089976600300015015.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        proj_size: Size of the projected output, below `hidden_size`; 0 for no projection.
        forget_bias: Initial bias of the forget gate. None initialises it like the other biases.

    Raises:
        UserError: If `proj_size` is out of range.

    Example:
        >>> cell = seqloom.LSTMCell(4, 8, forget_bias=1.0)
        >>> h, c = cell(torch.randn(3, 4))  # one step: (B, D) -> 2 x (B, H)
        >>> y, state = seqloom.scan(cell, torch.randn(3, 10, 4), (h, c))
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        proj_size: int = 0,
        forget_bias: float | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= proj_size < hidden_size:
            raise UserError(f"proj_size must be at least 0 and below hidden_size={hidden_size}, got {proj_size}")
        self.proj_size = proj_size
        self.forget_bias = forget_bias
        self.output_size = proj_size or hidden_size
        self.weight_ih = empty(4 * hidden_size, input_size)
        self.weight_hh = empty(4 * hidden_size, self.output_size)
        self.bias_ih = empty(4 * hidden_size) if bias else None
        self.bias_hh = empty(4 * hidden_size) if bias else None
        self.weight_hr = empty(proj_size, hidden_size) if proj_size else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()
        if self.forget_bias is not None:
            self.remember(torch.full((self.hidden_size,), self.forget_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        set_gate(1, bias, self.bias_ih, self.bias_hh)
        if coupled:
            set_gate(0, -bias, self.bias_ih, self.bias_hh)

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(x.shape[0], self.output_size), x.new_zeros(x.shape[0], self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        i, f, g, o = (x + F.linear(apply_mask(h, mask), self.weight_hh, self.bias_hh)).chunk(4, -1)
        return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        i, f, g, o = self.gates(x, state, mask).values()
        c = f * c + i * g
        h = o * torch.tanh(c)
        if self.weight_hr is not None:
            h = F.linear(h, self.weight_hr)
        return h, (h, c)

    def whole_step(self, x: Tensor, state: State) -> State:
        if not self.proj_size and type(self) is LSTMCell and can_use_torch(x):
            return torch.lstm_cell(x, state, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return super().whole_step(x, state)
