"""An RNN that is a stable differential equation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class AntisymmetricRNNCell(GatedCell, name="antisymmetric_rnn", year=2019, idea="differential", parent="rnn"):
    """An RNN that solves a stable differential equation.

        A  = U - U^T - gamma I
        h' = h + epsilon * tanh(W x + A h)

    The eigenvalues of A have the real part -gamma, so the state neither explodes nor, for a small gamma, fades. State:
    h (B, H). Chang et al. 2019, AntisymmetricRNN: a dynamical system view on recurrent neural networks, arXiv
    1902.09689.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        epsilon: Length of a step of the equation.
        gamma: How fast memories fade.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, epsilon: float = 0.1, gamma: float = 0.01
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.epsilon, self.gamma = epsilon, gamma

    def product(self, h: Tensor) -> Tensor:
        A = self.weight_hh - self.weight_hh.t()
        return F.linear(h, A, self.bias_hh) - self.gamma * h

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        h = h + self.epsilon * torch.tanh(x + self.product(apply_mask(h, mask)))
        return h, (h,)
