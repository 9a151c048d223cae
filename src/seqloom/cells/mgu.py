"""The minimal gated unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class MGUCell(GatedCell, name="mgu", year=2016, idea="one gate", parent="gru"):
    """A GRU whose one gate both resets and updates.

        f  = sigmoid(W_f x + U_f h)
        n  = tanh(W_n x + U_n (f * h))
        h' = (1 - f) * h + f * n

    f writes: f = 0 leaves h unchanged. State: h (B, H). Zhou et al. 2016, Minimal gated unit for recurrent neural
    networks, arXiv 1603.09420.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 2
    keep = (0, 0, -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h = apply_mask(state[0], mask)
        x_f, x_n = x.chunk(2, -1)
        U_f, U_n = self.blocks()
        f = torch.sigmoid(x_f + F.linear(h, *U_f))
        n = torch.tanh(x_n + F.linear(f * h, *U_n))
        return {"f": f, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        f, n = self.gates(x, state, mask).values()
        h = (1 - f) * h + f * n
        return h, (h,)
