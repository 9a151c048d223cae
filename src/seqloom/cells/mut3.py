"""The third of three mutated GRUs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class MUT3Cell(GatedCell, name="mut3", year=2015, idea="gru", parent="gru"):
    """A GRU found by search: the update gate reads tanh(h).

        z  = sigmoid(W_z x + U_z tanh(h))
        r  = sigmoid(W_r x + U_r h)
        n  = tanh(U_n (r * h) + W_n x)
        h' = z * n + (1 - z) * h

    z writes. State: h (B, H). Jozefowicz et al. 2015, An empirical exploration of recurrent network architectures, ICML
    2015.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 3, 3
    keep = (0, 0, -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h = apply_mask(state[0], mask)
        x_z, x_r, x_n = x.chunk(3, -1)
        U_z, U_r, U_n = self.blocks()
        z = torch.sigmoid(x_z + F.linear(torch.tanh(h), *U_z))
        r = torch.sigmoid(x_r + F.linear(h, *U_r))
        n = torch.tanh(F.linear(r * h, *U_n) + x_n)
        return {"z": z, "r": r, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, _, n = self.gates(x, state, mask).values()
        h = z * n + (1 - z) * h
        return h, (h,)
