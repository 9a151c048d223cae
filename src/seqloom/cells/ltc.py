"""The liquid time-constant network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class LTCCell(GatedCell, name="ltc", year=2020, idea="differential", parent="rnn"):
    """A leaky unit whose time constant depends on input and state.

        dh/dt = -(1 / tau + f) * h + f * A         f = sigmoid(W x + U h)
        h     = (h + e f A) / (1 + e (1 / tau + f))     `substeps` times, e = dt / substeps

    A and tau are learned vectors; tau = softplus(t) stays positive. The second line is the paper's fused solver,
    implicit where the equation is linear, so it is stable for every e. dt comes from the layer's `timespans` argument
    and is 1 without it. State: h (B, H).

    Hasani et al. 2020, Liquid time-constant networks, arXiv 2006.04439. The package ncps has a sigmoid for every pair
    of units instead of one matrix product.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        substeps: Number of steps of the solver between two inputs.

    Raises:
        UserError: If `substeps` is below 1.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, substeps: int = 6) -> None:
        if substeps < 1:
            raise UserError(f"substeps must be at least 1, got {substeps}")
        super().__init__(input_size, hidden_size, bias)
        self.substeps = substeps
        self.scale_A = empty(hidden_size)
        self.scale_t = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "scale_t"):
            nn.init.uniform_(self.scale_A, -1.0, 1.0)
            nn.init.constant_(self.scale_t, 1.0)

    def step(
        self, x: Tensor, state: State, mask: Tensor | None = None, dt: Tensor | None = None
    ) -> tuple[Tensor, State]:
        (h,) = state
        e = 1 / self.substeps if dt is None else dt.unsqueeze(-1) / self.substeps
        for _ in range(self.substeps):
            f = torch.sigmoid(x + self.product(apply_mask(h, mask)))
            h = (h + e * f * self.scale_A) / (1 + e * (1 / F.softplus(self.scale_t) + f))
        return h, (h,)
