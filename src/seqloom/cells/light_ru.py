"""The light recurrent unit."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class LightRUCell(GatedCell, name="light_ru", year=2024, idea="one gate", parent="mgu"):
    """One gate; the candidate reads the input alone.

        n  = tanh(W_n x)
        f  = sigmoid(W_f x + U h)
        h' = (1 - f) * h + f * n

    State: h (B, H). Ye et al. 2024, Light recurrent unit: towards an interpretable recurrent neural network for
    modeling long-range dependency, doi 10.3390/electronics13163204.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 1
    keep = (1, 0, -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_n, x_f = x.chunk(2, -1)
        n = torch.tanh(x_n)
        f = torch.sigmoid(x_f + self.product(apply_mask(h, mask)))
        return {"n": n, "f": f}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        n, f = self.gates(x, state, mask).values()
        h = (1 - f) * h + f * n
        return h, (h,)
