"""The minimal LSTM, whose gates do not read the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, linear_
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class MinLSTMCell(Cell, name="min_lstm"):
    """Forget and input gates that read the input alone and are scaled to add up to one.

        f  = sigmoid(W_f x)
        i  = sigmoid(W_i x)
        n  = W_n x
        h' = f / (f + i) * h + i / (f + i) * n

    Linear in h, so all steps can be had at once by a parallel scan.
    Feng et al. 2024, arXiv 2410.01201.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, forget_bias: float | None = None) -> None:
        super().__init__(input_size, hidden_size)
        self.forget_bias = forget_bias
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.bias_ih = empty(3 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        linear_(self.weight_ih, self.bias_ih)
        if self.forget_bias is not None:
            self.remember(torch.full((self.hidden_size,), self.forget_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("a gate bias was asked for, but bias=False leaves none to set")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = bias
            if coupled:
                self.bias_ih[self.hidden_size : 2 * self.hidden_size] = -bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        f, i, n = x.chunk(3, -1)
        return {"f": torch.sigmoid(f), "i": torch.sigmoid(i), "n": n}

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a and b of h' = a * h + b, for any number of steps at once."""
        f, i, n = self.gates(x, ()).values()
        return f / (f + i), i / (f + i) * n

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        a, b = self.coefficients(x)
        h = a * h + b
        return h, (h,)
