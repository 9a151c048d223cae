"""The plain recurrent network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, can_use_torch, empty
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError

ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "gelu": F.gelu,
    "silu": F.silu,
    "elu": F.elu,
}
TORCH_CELLS = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}


class RNNCell(Cell, name="rnn", year=1990, idea="plain"):
    """The plain recurrent cell: one nonlinearity over the input and the previous output.

        h' = tanh(W x + U h)

    Both products have a bias, as in torch. State: h (B, H). Elman 1990, doi 10.1207/s15516709cog1402_1.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        nonlinearity: "tanh", "relu", "sigmoid", "gelu", "silu" or "elu".

    Raises:
        UserError: If the nonlinearity is unknown.

    Example:
        >>> cell = seqloom.RNNCell(4, 8, nonlinearity="relu")
        >>> cell(torch.randn(3, 4)).shape  # one step: (B, D) -> (B, H)
        torch.Size([3, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh") -> None:
        super().__init__(input_size, hidden_size)
        if nonlinearity not in ACTIVATIONS:
            raise UserError(f"nonlinearity must be one of {', '.join(ACTIVATIONS)}, got {nonlinearity!r}")
        self.nonlinearity = nonlinearity
        self.weight_ih = empty(hidden_size, input_size)
        self.weight_hh = empty(hidden_size, hidden_size)
        self.bias_ih = empty(hidden_size) if bias else None
        self.bias_hh = empty(hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        h = ACTIVATIONS[self.nonlinearity](x + F.linear(apply_mask(h, mask), self.weight_hh, self.bias_hh))
        return h, (h,)

    def whole_step(self, x: Tensor, state: State) -> State:
        if self.nonlinearity in TORCH_CELLS and type(self) is RNNCell and can_use_torch(x):
            return (
                TORCH_CELLS[self.nonlinearity](x, state[0], self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh),
            )
        return super().whole_step(x, state)
