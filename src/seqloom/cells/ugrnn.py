"""The update gate network."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class UGRNNCell(GatedCell, name="ugrnn", year=2016, idea="one gate", parent="gru"):
    """A GRU with the update gate alone.

        n  = tanh(W_n x + U_n h)
        z  = sigmoid(W_z x + U_z h)
        h' = z * h + (1 - z) * n

    State: h (B, H). Collins et al. 2016, Capacity and trainability in recurrent neural networks, arXiv 1611.09913.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 2
    keep = (1, 1, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        n, z = (x + self.product(apply_mask(h, mask))).chunk(2, -1)
        return {"n": torch.tanh(n), "z": torch.sigmoid(z)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        n, z = self.gates(x, state, mask).values()
        h = z * h + (1 - z) * n
        return h, (h,)
