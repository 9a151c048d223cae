"""The light GRU."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class LiGRUCell(GatedCell, name="li_gru", year=2018, idea="one gate", parent="gru"):
    """A GRU without a reset gate, with a relu candidate.

        z  = sigmoid(W_z x + U_z h)
        n  = relu(W_n x + U_n h)
        h' = z * h + (1 - z) * n

    The paper normalises W_z x and W_n x over the batch, which keeps the relu from growing; here that is left to the
    layer around the cell. State: h (B, H). Ravanelli et al. 2018, Light gated recurrent units for speech recognition,
    arXiv 1803.10225.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 2
    keep = (0, 0, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        z, n = (x + self.product(apply_mask(h, mask))).chunk(2, -1)
        return {"z": torch.sigmoid(z), "n": torch.relu(n)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, n = self.gates(x, state, mask).values()
        h = z * h + (1 - z) * n
        return h, (h,)
