"""The long expressive memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class LEMCell(GatedCell, name="lem", year=2021, idea="differential", parent="lstm"):
    """Two states with learned step lengths: several time scales at once.

        a  = dt * sigmoid(W_a x + U_a h)
        b  = dt * sigmoid(W_b x + U_b h)
        z' = (1 - a) * z + a * tanh(W_z x + U_z h)
        h' = (1 - b) * h + b * tanh(W_h x + V z')

    State: h and z (B, H). Rusch et al. 2021, Long expressive memory for sequence modeling, arXiv 2110.04744.

    torchrecurrent 0.2.5 reads the old z where the paper has the new z'.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to every product.
        dt: Longest step of the equations, above 0 and at most 1.

    Raises:
        UserError: If `dt` is out of range.
    """

    w, u, states = 4, 3, 2
    keep = (0, 0, -1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, dt: float = 1.0) -> None:
        if not 0 < dt <= 1:
            raise UserError(f"dt must be above 0 and at most 1, got {dt}")
        super().__init__(input_size, hidden_size, bias)
        self.dt = dt
        self.weight_zh = empty(hidden_size, hidden_size)
        self.bias_zh = empty(hidden_size) if bias else None
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, z = state
        x_a, x_b, x_z, x_h = x.chunk(4, -1)
        h_a, h_b, h_z = self.product(apply_mask(h, mask)).chunk(3, -1)
        a = self.dt * torch.sigmoid(x_a + h_a)
        b = self.dt * torch.sigmoid(x_b + h_b)
        z = (1 - a) * z + a * torch.tanh(x_z + h_z)
        n = torch.tanh(x_h + F.linear(z, self.weight_zh, self.bias_zh))
        return {"a": a, "b": b, "z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, _ = state
        _, b, z, n = self.gates(x, state, mask).values()
        h = (1 - b) * h + b * n
        return h, (h, z)
