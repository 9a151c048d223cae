"""The bistable recurrent cell."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class BRCell(Cell, name="br", year=2021, idea="gru", parent="gru"):
    """A GRU whose units are independent and can each hold one of two values forever.

        a  = 1 + tanh(W_a x + u_a * h)
        z  = sigmoid(W_z x + u_z * h)
        h' = z * h + (1 - z) * tanh(W_n x + a * h)

    u_a and u_z are vectors. A unit with a > 1 has two stable values. State: h (B, H). Vecoven et al. 2021, A
    bio-inspired bistable recurrent cell allows for long-lasting memory, doi 10.1371/journal.pone.0252676.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to the product.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.bias_ih = empty(3 * hidden_size) if bias else None
        self.scale_hh = empty(2 * hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[self.hidden_size : 2 * self.hidden_size] = bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        seen = apply_mask(h, mask)
        x_a, x_z, x_n = x.chunk(3, -1)
        u_a, u_z = self.scale_hh.chunk(2)
        a = 1 + torch.tanh(x_a + u_a * seen)
        z = torch.sigmoid(x_z + u_z * seen)
        n = torch.tanh(x_n + a * h)
        return {"a": a, "z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, z, n = self.gates(x, state, mask).values()
        h = z * h + (1 - z) * n
        return h, (h,)
