"""The addition-subtraction twin-gated network."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class ATRCell(GatedCell, name="atr", year=2018, idea="one gate", parent="gru"):
    """Two gates from one pair of matrices: their sum writes, their difference keeps.

        p  = W x
        q  = U h
        i  = sigmoid(p + q)
        f  = sigmoid(p - q)
        h' = i * p + f * h

    State: h (B, H). Zhang et al. 2018, Simplifying neural machine translation with addition-subtraction twin-gated
    recurrent networks, arXiv 1810.12546.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        p = x
        q = self.product(apply_mask(h, mask))
        i = torch.sigmoid(p + q)
        f = torch.sigmoid(p - q)
        return {"p": p, "q": q, "i": i, "f": f}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        p, _, i, f = self.gates(x, state, mask).values()
        h = i * p + f * h
        return h, (h,)
