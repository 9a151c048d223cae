"""The first minion recurrent unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class MiRU1Cell(GatedCell, name="miru1", year=2026, idea="one gate", parent="gru"):
    """A GRU whose update gate is a fixed number.

        r  = sigmoid(W_r x + U_r h)
        n  = tanh(W_n x + U_n (r * h))
        h' = lam * h + (1 - lam) * n

    State: h (B, H). Zyarah & Kudithipudi 2026, Minion gated recurrent unit for continual learning, doi
    10.1016/j.neucom.2026.132847.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        lam: Share of the old state in the new one.
    """

    w, u = 2, 2

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, lam: float = 0.5) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.lam = lam

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h = apply_mask(state[0], mask)
        x_r, x_n = x.chunk(2, -1)
        U_r, U_n = self.blocks()
        r = torch.sigmoid(x_r + F.linear(h, *U_r))
        n = torch.tanh(x_n + F.linear(r * h, *U_n))
        return {"r": r, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, n = self.gates(x, state, mask).values()
        h = self.lam * h + (1 - self.lam) * n
        return h, (h,)
