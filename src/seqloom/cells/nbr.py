"""The neuromodulated bistable recurrent cell."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class NBRCell(GatedCell, name="nbr", year=2021, idea="gru", parent="br"):
    """A bistable cell whose gates read the whole state.

        a  = 1 + tanh(W_a x + U_a h)
        z  = sigmoid(W_z x + U_z h)
        h' = z * h + (1 - z) * tanh(W_n x + a * h)

    State: h (B, H). Vecoven et al. 2021, A bio-inspired bistable recurrent cell allows for long-lasting memory, doi
    10.1371/journal.pone.0252676.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 3, 2
    keep = (1, 1, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_a, x_z, x_n = x.chunk(3, -1)
        h_a, h_z = self.product(apply_mask(h, mask)).chunk(2, -1)
        a = 1 + torch.tanh(x_a + h_a)
        z = torch.sigmoid(x_z + h_z)
        n = torch.tanh(x_n + a * h)
        return {"a": a, "z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, z, n = self.gates(x, state, mask).values()
        h = z * h + (1 - z) * n
        return h, (h,)
