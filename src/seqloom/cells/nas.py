"""The cell that neural architecture search found."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class NASCell(GatedCell, name="nas", year=2016, idea="lstm", parent="lstm"):
    """A memory cell found by reinforcement learning: a tree over eight gates.

        a_k = W_k x + U_k h                  k = 1 .. 8, but a_4 = (W_4 x) * (U_4 h)
        p   = tanh(tanh(sigmoid(a_1) * relu(a_2)) + c)
        q   = tanh(sigmoid(a_3) + relu(a_4))
        r   = tanh(tanh(a_5) * sigmoid(a_6))
        s   = sigmoid(tanh(a_7) + sigmoid(a_8))
        c'  = p * q
        h'  = tanh(c' * tanh(r + s))

    State: h and c (B, H). Zoph & Le 2016, Neural architecture search with reinforcement learning, arXiv 1611.01578.

    torchrecurrent 0.2.5 adds the two parts of a_4; the paper's figure and the authors' code multiply them.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u, states = 8, 8, 2

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, c = state
        x_1, x_2, x_3, x_4, x_5, x_6, x_7, x_8 = x.chunk(8, -1)
        h_1, h_2, h_3, h_4, h_5, h_6, h_7, h_8 = self.product(apply_mask(h, mask)).chunk(8, -1)
        p = torch.tanh(torch.tanh(torch.sigmoid(x_1 + h_1) * torch.relu(x_2 + h_2)) + c)
        q = torch.tanh(torch.sigmoid(x_3 + h_3) + torch.relu(x_4 * h_4))
        r = torch.tanh(torch.tanh(x_5 + h_5) * torch.sigmoid(x_6 + h_6))
        s = torch.sigmoid(torch.tanh(x_7 + h_7) + torch.sigmoid(x_8 + h_8))
        return {"p": p, "q": q, "r": r, "s": s}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        p, q, r, s = self.gates(x, state, mask).values()
        c = p * q
        h = torch.tanh(c * torch.tanh(r + s))
        return h, (h, c)
