"""FastRNN: an RNN with a weighted residual connection."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class FastRNNCell(GatedCell, name="fast_rnn", year=2019, idea="plain", parent="rnn"):
    """An RNN with a residual connection and two learned scalars.

        n  = tanh(W x + U h)
        h' = sigmoid(alpha) * n + sigmoid(beta) * h

    State: h (B, H). Kusupati et al. 2019, FastGRNN: a fast, accurate, stable and tiny kilobyte sized gated recurrent
    neural network, arXiv 1901.02358.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        alpha: Initial value of alpha, which is learned; -3 starts close to the identity.
        beta: Initial value of beta, which is learned.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, alpha: float = -3.0, beta: float = 3.0
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.alpha, self.beta = alpha, beta
        self.scale_n = empty(1)
        self.scale_h = empty(1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_h"):
            nn.init.constant_(self.scale_n, self.alpha)
            nn.init.constant_(self.scale_h, self.beta)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        return {"n": torch.tanh(x + self.product(apply_mask(h, mask)))}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        (n,) = self.gates(x, state, mask).values()
        h = torch.sigmoid(self.scale_n) * n + torch.sigmoid(self.scale_h) * h
        return h, (h,)
