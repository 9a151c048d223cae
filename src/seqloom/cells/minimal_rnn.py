"""The minimal RNN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class MinimalRNNCell(GatedCell, name="minimal_rnn", year=2017, idea="one gate", parent="gru"):
    """One gate; the input is first mapped to the space of the state.

        z  = tanh(W x)
        u  = sigmoid(U h + V z)
        h' = u * h + (1 - u) * z

    V has no bias. State: h (B, H). Chen 2017, MinimalRNN: toward more interpretable and trainable recurrent neural
    networks, arXiv 1711.06788.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_zu = empty(hidden_size, hidden_size)
        self.reset_parameters()

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_hh is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_hh.copy_(bias)

    def project(self, x: Tensor) -> Tensor:
        z = torch.tanh(super().project(x))
        return torch.cat([z, F.linear(z, self.weight_zu)], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        z, Vz = x.chunk(2, -1)
        u = torch.sigmoid(self.product(apply_mask(h, mask)) + Vz)
        return {"z": z, "u": u}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, u = self.gates(x, state, mask).values()
        h = u * h + (1 - u) * z
        return h, (h,)
