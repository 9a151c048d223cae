"""An RNN with an orthogonal recurrent matrix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import State

HALVINGS = 3  # the exponential is summed for A / 8, then squared three times
TERMS = 12  # terms of the Taylor sum


def exponentiate(A: Tensor) -> Tensor:
    """Return exp(A) - 1 of a skew-symmetric matrix: without the identity, which would round small angles away."""
    part = A / 2**HALVINGS
    E = part / TERMS
    for k in range(TERMS - 1, 0, -1):
        E = (part + part @ E) / k
    for _ in range(HALVINGS):
        E = 2 * E + E @ E
    return E


class OrthogonalRNNCell(GatedCell, name="orthogonal_rnn", year=2019, idea="plain", parent="rnn"):
    """An RNN whose recurrent matrix is a rotation, so that gradients keep their length.

        A  = P - P^T
        a  = W x + exp(A) h                   exp: of a matrix
        h' = sign(a) relu(|a| + b)            modrelu

    P is the parameter weight_hh; exp(A) is orthogonal for every P, so any optimiser may change it. It is computed by
    scaling, a Taylor sum and squaring: only products, which the compiler moves out of the loop; within 2e-6 of the
    exponential in float32 and 1e-2 in bfloat16 while the norm of A is below 14. State: h (B, H). Lezcano-Casado &
    Martinez-Rubio 2019, Cheap orthogonal constraints in neural networks: a simple parametrization of the orthogonal and
    unitary group, arXiv 1901.08428.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x; b is always present.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.bias_hh = None
        self.bias_b = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        nn.init.uniform_(self.weight_hh, -1 / math.sqrt(self.hidden_size), 1 / math.sqrt(self.hidden_size))
        if hasattr(self, "bias_b"):
            nn.init.uniform_(self.bias_b, -0.01, 0.01)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        A = self.weight_hh - self.weight_hh.t()
        seen = apply_mask(h, mask)
        a = x + seen + F.linear(seen, exponentiate(A))
        h = torch.sign(a) * torch.relu(torch.abs(a) + self.bias_b)
        return h, (h,)
