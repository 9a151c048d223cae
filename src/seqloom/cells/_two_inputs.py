"""Base class of cells whose gates read the last two inputs and no state."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class TwoInputsCell(Cell):
    """Base class of cells whose three gates read two inputs: that of the current step, x, and of the previous step, p.

    The gates are W x + V p + b; p is 0 at the first step.

    V p is computed with W x for all steps at once, so that the state keeps V p instead of p, as its last tensor. The
    second gate is the forget gate. Parameters: weight_ih and weight_ph (3H, D) and bias_ih (3H,), drawn as
    torch.nn.Linear draws its own.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.

    Attributes:
        states: Number of tensors (B, H) in the state, before V p; all start at zero.
    """

    states: ClassVar[int] = 1

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
        return (*(x.new_zeros(B, H) for _ in range(self.states)), x.new_zeros(B, 3 * H))

    def project(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, self.weight_ih, self.bias_ih), F.linear(x, self.weight_ph)], -1)

    def read(self, x: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return the three blocks of W x + V p + b, each (B, H)."""
        Wx, _ = x.chunk(2, -1)
        z, f, o = (Wx + state[-1]).chunk(3, -1)
        return z, f, o
