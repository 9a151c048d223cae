"""The simple gated unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class SGUCell(GatedCell, name="sgu", year=2016, idea="one gate", parent="mgu"):
    """One gate; the input multiplies the state before the product.

        g  = W_g x
        s  = tanh(U_g (g * h))
        n  = softplus(s * h)
        z  = clip((W_z x + U_z h) / 6 + 1/2)           to [0, 1]: the hard sigmoid
        h' = (1 - z) * h + z * n

    State: h (B, H). Gao & Glowacka 2016, Deep gate recurrent neural
    network, arXiv 1604.02910.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u = 2, 2
    keep = (1, 1, -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        seen = apply_mask(h, mask)
        g, x_z = x.chunk(2, -1)
        U_g, U_z = self.blocks()
        s = torch.tanh(F.linear(g * seen, *U_g))
        n = F.softplus(s * h)
        z = ((x_z + F.linear(seen, *U_z)) / 6 + 0.5).clamp(
            0, 1
        )  # torch's hardsigmoid is differentiable only in float32
        return {"s": s, "n": n, "z": z}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, n, z = self.gates(x, state, mask).values()
        h = (1 - z) * h + z * n
        return h, (h,)
