"""Coupled oscillators."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class CoRNNCell(GatedCell, name="cornn", year=2020, idea="differential", parent="rnn"):
    """Coupled damped oscillators, driven by the input.

        z' = z + dt * (tanh(W x + U h + V z) - gamma * h - epsilon * z)
        h' = h + dt * z'

    h is the position of the oscillators and z their speed. State: h and z (B, H). Rusch & Mishra 2020, Coupled
    oscillatory recurrent neural network (coRNN), arXiv 2010.00951.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        dt: Length of a step of the equation.
        gamma: Stiffness: the pull back to 0.
        epsilon: Damping.
    """

    states = 2

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        dt: float = 0.1,
        gamma: float = 1.0,
        epsilon: float = 1.0,
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.dt, self.gamma, self.epsilon = dt, gamma, epsilon
        self.weight_zh = empty(hidden_size, hidden_size)
        self.reset_parameters()

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, z = state
        a = torch.tanh(x + self.product(apply_mask(h, mask)) + F.linear(z, self.weight_zh))
        z = z + self.dt * (a - self.gamma * h - self.epsilon * z)
        h = h + self.dt * z
        return h, (h, z)
