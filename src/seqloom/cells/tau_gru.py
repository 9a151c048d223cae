"""A GRU with delayed feedback."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class TauGRUCell(GatedCell, name="tau_gru", year=2022, idea="gru", parent="gru"):
    """A GRU that also reads an earlier state.

        p  = tanh(W_p x + U_p h)
        q  = tanh(W_q x + U_q late)                late: the state `delay` steps before h
        g  = sigmoid(W_g x + U_g h)
        a  = sigmoid(W_a x + U_a h)
        h' = (1 - g) * h + g * (p + a * q)

    The state is h and the `delay` states before it, delay + 1 tensors (B, H), the newest first; all start at zero.
    Erichson et al. 2022, Gated recurrent neural networks with weighted time-delay feedback, arXiv 2212.00228.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        delay: Number of steps between h and the late state, at least 1.

    Raises:
        UserError: If `delay` is below 1.
    """

    w, u = 4, 4
    keep = (2, 2, -1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, delay: int = 1) -> None:
        if delay < 1:
            raise UserError(f"delay must be at least 1 step, got {delay}")
        super().__init__(input_size, hidden_size, bias)
        self.delay = delay

    def initial_state(self, x: Tensor) -> State:
        return tuple(x.new_zeros(x.shape[0], self.hidden_size) for _ in range(self.delay + 1))

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, late = apply_mask(state[0], mask), apply_mask(state[-1], mask)
        x_p, x_q, x_g, x_a = x.chunk(4, -1)
        U_p, U_q, U_g, U_a = self.blocks()
        p = torch.tanh(x_p + F.linear(h, *U_p))
        q = torch.tanh(x_q + F.linear(late, *U_q))
        g = torch.sigmoid(x_g + F.linear(h, *U_g))
        a = torch.sigmoid(x_a + F.linear(h, *U_a))
        return {"p": p, "q": q, "g": g, "a": a}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h = state[0]
        p, q, g, a = self.gates(x, state, mask).values()
        new = (1 - g) * h + g * (p + a * q)
        return new, (new, *state[:-1])
