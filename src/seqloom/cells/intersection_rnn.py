"""The intersection RNN."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State


class IntersectionRNNCell(GatedCell, name="intersection_rnn", year=2016, idea="depth", parent="ugrnn"):
    """Two gated paths: one through time, one through depth.

        v  = x                                where input_size = hidden_size, else V x
        p  = relu(W_p x + U_p h)
        q  = tanh(W_q x + U_q h)
        a  = sigmoid(W_a x + U_a h)
        b  = sigmoid(W_b x + U_b h)
        y' = a * v + (1 - a) * p
        h' = b * h + (1 - b) * q

    The output y goes to the next layer, h to the next step. The paper has inputs as wide as the state. State: y, which
    is not read, and h (B, H). Collins et al. 2016, Capacity and trainability in recurrent neural networks, arXiv
    1611.09913.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    memory = 1
    w, u, states = 4, 4, 2
    keep = (3, 3, 1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size, bias)
        self.weight_v = None if input_size == hidden_size else empty(hidden_size, input_size)
        self.reset_parameters()

    def project(self, x: Tensor) -> Tensor:
        v = x if self.weight_v is None else F.linear(x, self.weight_v)
        return torch.cat([super().project(x), v], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        _, h = state
        x, v = x.split((4 * self.hidden_size, self.hidden_size), -1)
        p, q, a, b = (x + self.product(apply_mask(h, mask))).chunk(4, -1)
        return {"v": v, "p": torch.relu(p), "q": torch.tanh(q), "a": torch.sigmoid(a), "b": torch.sigmoid(b)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, h = state
        v, p, q, a, b = self.gates(x, state, mask).values()
        y = a * v + (1 - a) * p
        h = b * h + (1 - b) * q
        return y, (y, h)
