"""The strongly typed RNN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class TRNNCell(Cell, name="t_rnn", year=2016, idea="linear", parent="rnn"):
    """A forget gate that reads the input alone.

        z  = W_z x
        f  = sigmoid(W_f x)
        h' = f * h + (1 - f) * z

    The cell is linear in h, so a parallel scan computes all steps at once. State: h (B, H). Balduzzi & Ghifary 2016,
    Strongly-typed recurrent neural networks, arXiv 1602.02218.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to the product.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(2 * hidden_size, input_size)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[self.hidden_size :] = bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        z, f = x.chunk(2, -1)
        return {"z": z, "f": torch.sigmoid(f)}

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and b of h' = a * h + b, for any number of steps at once: (..., 2H) -> 2 x (..., H)."""
        z, f = self.gates(x, ()).values()
        return f, (1 - f) * z

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        a, b = self.coefficients(x)
        h = a * h + b
        return h, (h,)
