"""An antisymmetric RNN with a gate."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State


class GatedAntisymmetricRNNCell(
    GatedCell, name="gated_antisymmetric_rnn", year=2019, idea="differential", parent="antisymmetric_rnn"
):
    """An antisymmetric RNN with one gate, which shares its matrix.

        A  = U - U^T - gamma I
        z  = sigmoid(W_z x + A h)
        n  = tanh(W_n x + A h)
        h' = h + epsilon * z * n

    A h has no bias. State: h (B, H). Chang et al. 2019, AntisymmetricRNN: a dynamical system view on recurrent neural
    networks, arXiv 1902.09689.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
        epsilon: Length of a step of the equation.
        gamma: How fast memories fade.
    """

    w = 2
    keep = (0, None, -1)

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, epsilon: float = 0.1, gamma: float = 0.01
    ) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.bias_hh = None
        self.epsilon, self.gamma = epsilon, gamma

    def product(self, h: Tensor) -> Tensor:
        A = self.weight_hh - self.weight_hh.t()
        return F.linear(h, A) - self.gamma * h

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        x_z, x_n = x.chunk(2, -1)
        Ah = self.product(apply_mask(h, mask))
        z = torch.sigmoid(x_z + Ah)
        n = torch.tanh(x_n + Ah)
        return {"z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        z, n = self.gates(x, state, mask).values()
        h = h + self.epsilon * z * n
        return h, (h,)
