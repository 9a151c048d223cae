"""The second minion recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class MiRU2Cell(GatedCell, name="miru2", year=2026, idea="plain", parent="miru1"):
    """A GRU whose gates are both fixed numbers: a leaky RNN.

        n  = tanh(W x + U (beta * h))
        h' = lam * h + (1 - lam) * n

    State: h (B, H). Zyarah & Kudithipudi 2026, Minion gated recurrent unit for continual learning, doi
    10.1016/j.neucom.2026.132847.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        lam: Share of the old state in the new one.
        beta: Factor of the old state in the candidate.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, lam: float = 0.5, beta: float = 0.5
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.lam, self.beta = lam, beta

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        return {"n": torch.tanh(x + self.product(self.beta * apply_mask(h, mask)))}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        (n,) = self.gates(x, state, mask).values()
        h = self.lam * h + (1 - self.lam) * n
        return h, (h,)
