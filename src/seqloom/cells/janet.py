"""Just another network: an LSTM with the forget gate alone."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class JANETCell(GatedCell, name="janet", year=2018, idea="one gate", parent="lstm"):
    """An LSTM with the forget gate alone.

        s  = W_s x + U_s h
        g  = tanh(W_g x + U_g h)
        h' = sigmoid(s) * h + (1 - sigmoid(s - beta)) * g

    beta > 0 lets the cell write more than it forgets. The memory is the output, so there is one state: h (B, H). van
    der Westhuizen & Lasenby 2018, The unreasonable effectiveness of the forget gate, arXiv 1804.04849.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        beta: How much more the cell writes than it forgets.
    """

    w, u = 2, 2
    keep = (0, 0, 1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, beta: float = 1.0) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.beta = beta

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        s, g = (x + self.product(apply_mask(h, mask))).chunk(2, -1)
        return {"f": torch.sigmoid(s), "i": 1 - torch.sigmoid(s - self.beta), "g": torch.tanh(g)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        f, i, g = self.gates(x, state, mask).values()
        h = f * h + i * g
        return h, (h,)
