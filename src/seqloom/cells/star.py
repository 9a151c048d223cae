"""The stackable recurrent cell."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class STARCell(GatedCell, name="star", year=2019, idea="one gate", parent="gru"):
    """One gate, and a tanh of the new state, so that many layers can be stacked.

        n  = tanh(W_n x)
        k  = sigmoid(W_k x + U h)
        h' = tanh((1 - k) * h + k * n)

    State: h (B, H). Turkoglu et al. 2019, Gating revisited: deep multi-layer RNNs that can be trained, arXiv
    1911.11033.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 1
    keep = (1, 0, -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_n, x_k = x.chunk(2, -1)
        n = torch.tanh(x_n)
        k = torch.sigmoid(x_k + self.product(apply_mask(h, mask)))
        return {"n": n, "k": k}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        n, k = self.gates(x, state, mask).values()
        h = torch.tanh((1 - k) * h + k * n)
        return h, (h,)
