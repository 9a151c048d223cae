"""The minimal GRU, whose gates do not read the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, linear_
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class MinGRUCell(Cell, name="min_gru"):
    """A GRU without reset gate whose gate and candidate read the input alone.

        z  = sigmoid(W_z x)
        n  = W_n x
        h' = (1 - z) * h + z * n

    Linear in h, so all steps can be had at once by a parallel scan. Here z writes.
    Feng et al. 2024, arXiv 2410.01201.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(2 * hidden_size, input_size)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        linear_(self.weight_ih, self.bias_ih)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("a gate bias was asked for, but bias=False leaves none to set")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = -bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        z, n = x.chunk(2, -1)
        return {"z": torch.sigmoid(z), "n": n}

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a and b of h' = a * h + b, for any number of steps at once."""
        z, n = self.gates(x, ()).values()
        return 1 - z, z * n

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        a, b = self.coefficients(x)
        h = a * h + b
        return h, (h,)
