"""Undamped independent oscillators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State


class UnICORNNCell(Cell, name="unicornn", year=2021, idea="differential", parent="cornn"):
    """Independent undamped oscillators, each with its own step length.

        d  = dt * sigmoid(s)
        z' = z - d * (tanh(W x + b + u * h) + alpha * h)
        h' = h + d * z'

    u and s are vectors, so there is no recurrent product. State: h and z (B, H). Steps are so small that a bfloat16
    state loses them to rounding over hundreds of steps: train under autocast, which keeps the state in float32.

    Rusch & Mishra 2021, UnICORNN: a recurrent model for learning very long time dependencies, arXiv 2103.05487.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add the bias b.
        dt: Longest step of the equation.
        alpha: Stiffness: the pull back to 0.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, dt: float = 0.1, alpha: float = 0.0
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.dt, self.alpha = dt, alpha
        self.weight_ih = empty(hidden_size, input_size)
        self.bias_ih = empty(hidden_size) if bias else None
        self.scale_hh = empty(hidden_size)
        self.scale_dt = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        nn.init.uniform_(self.scale_hh, 0.0, 1.0)  # as in the authors' code
        nn.init.uniform_(self.scale_dt, -0.1, 0.1)

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_zeros(x.shape[0], self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, z = state
        d = self.dt * torch.sigmoid(self.scale_dt)
        z = z - d * (torch.tanh(x + self.scale_hh * apply_mask(h, mask)) + self.alpha * h)
        h = h + d * z
        return h, (h, z)
