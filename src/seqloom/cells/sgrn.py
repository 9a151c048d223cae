"""The simple gated recurrent network."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class SGRNCell(GatedCell, name="sgrn", year=2021, idea="one gate", parent="atr"):
    """One gate from one pair of matrices, which also give the candidate.

        f  = sigmoid(W x + U h)
        h' = tanh((1 - f) * (W x) + f * h)

    State: h (B, H). Simple gated recurrent network, 2021, doi 10.1049/gtd2.12056.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    keep = (0, 0, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        return {"f": torch.sigmoid(x + self.product(apply_mask(h, mask)))}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        (f,) = self.gates(x, state, mask).values()
        h = torch.tanh((1 - f) * x + f * h)
        return h, (h,)
