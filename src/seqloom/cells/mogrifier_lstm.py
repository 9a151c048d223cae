"""The Mogrifier LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class MogrifierLSTMCell(GatedCell, name="mogrifier_lstm", year=2019, idea="lstm", parent="lstm"):
    """An LSTM whose input and state gate each other before the step.

        x  = 2 sigmoid(Q_k h) * x             rounds 1, 3, 5, ...
        h  = 2 sigmoid(R_k x) * h             rounds 2, 4, ...
        h', c' = LSTM(x, h, c)

    Q and R have no bias. The input changes in each step, so W x is not computed for all steps at once. State: h and c
    (B, H). Melis et al. 2019, Mogrifier LSTM, arXiv 1909.01792.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to the products of the LSTM.
        rounds: How often input and state gate each other; 0 gives an LSTM.

    Raises:
        UserError: If `rounds` is negative.
    """

    w, u, states = 4, 4, 2
    keep, enter = (1, 1, 1), (0, 0)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, rounds: int = 5) -> None:
        if rounds < 0:
            raise UserError(f"rounds must be at least 0, got {rounds}")
        super().__init__(input_size, hidden_size, bias)
        self.rounds = rounds
        for k in range(1, rounds + 1):
            size = (input_size, hidden_size) if k % 2 else (hidden_size, input_size)
            self.register_parameter(f"weight_{k}", empty(*size))
        self.reset_parameters()

    def project(self, x: Tensor) -> Tensor:
        return x

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        h = apply_mask(h, mask)
        for k in range(1, self.rounds + 1):
            if k % 2:
                x = 2 * torch.sigmoid(F.linear(h, getattr(self, f"weight_{k}"))) * x
            else:
                h = 2 * torch.sigmoid(F.linear(x, getattr(self, f"weight_{k}"))) * h
        i, f, g, o = (super().project(x) + self.product(h)).chunk(4, -1)
        return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        i, f, g, o = self.gates(x, state, mask).values()
        c = f * c + i * g
        h = o * torch.tanh(c)
        return h, (h, c)
