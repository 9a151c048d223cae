"""The chaos-free network."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class CFNCell(GatedCell, name="cfn", year=2016, idea="one gate", parent="gru"):
    """Two gates on the old state and the input; without input the state decays to zero.

        t  = sigmoid(W_t x + U_t h)
        e  = sigmoid(W_e x + U_e h)
        h' = t * tanh(h) + e * tanh(W_n x)

    State: h (B, H). Laurent & von Brecht 2016, A recurrent neural network without chaos, arXiv 1612.06212.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 3, 2
    keep = (0, 0, 1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_t, x_e, x_n = x.chunk(3, -1)
        h_t, h_e = self.product(apply_mask(h, mask)).chunk(2, -1)
        t = torch.sigmoid(x_t + h_t)
        e = torch.sigmoid(x_e + h_e)
        return {"t": t, "e": e, "n": torch.tanh(x_n)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        t, e, n = self.gates(x, state, mask).values()
        h = t * torch.tanh(h) + e * n
        return h, (h,)
