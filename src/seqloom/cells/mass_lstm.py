"""The mass-conserving LSTM."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, empty, is_plain
from seqloom.core.cell import Cell, State
from seqloom.core.errors import InputError, UserError

RESTING = 3.0  # added to the diagonal of P at the start, so that most mass stays in its unit


class MassLSTMCell(Cell, name="mass_lstm", year=2021, idea="lstm", parent="lstm"):
    """An LSTM that stores, moves and outputs mass, without creating or losing any.

        a  = c / sum(c)                       0 where the memory is empty
        i  = softmax(W_i x + U_i a)           where the new mass goes
        o  = sigmoid(W_o x + U_o a)           which part of the mass leaves
        R  = softmax(P)                       each column: where the mass of a unit goes
        t  = R c + i * sum(m)                 m: the mass that x brings
        c' = (1 - o) * t
        h' = o * t

    With `mass_size` = k the first k features of x are masses: sum(c') + sum(h') = sum(c) + sum(m). They must not be
    negative, which is checked on a CPU. Without it the mass is learned, m = softplus(w x), and the cell takes any
    input. The paper lets R depend on the input too; here it is the same in every step. State: h, which is not read, and
    c (B, H).

    Hoedt et al. 2021, MC-LSTM: mass-conserving LSTM, arXiv 2101.05186.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
        mass_size: Number of features of x that are masses, the first ones; 0 for a learned mass.

    Raises:
        UserError: If `mass_size` is out of range.
    """

    memory = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, mass_size: int = 0) -> None:
        super().__init__(input_size, hidden_size)
        if not 0 <= mass_size <= input_size:
            raise UserError(f"mass_size must be between 0 and input_size={input_size}, got {mass_size}")
        self.mass_size = mass_size
        self.weight_ih = empty(2 * hidden_size, input_size)
        self.weight_hh = empty(2 * hidden_size, hidden_size)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.weight_r = empty(hidden_size, hidden_size)
        self.weight_m = empty(1, input_size) if not mass_size else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()
        with torch.no_grad():
            self.weight_r.diagonal().add_(RESTING)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[self.hidden_size :] = -bias

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_zeros(x.shape[0], self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        if self.weight_m is not None:
            m = F.softplus(F.linear(x, self.weight_m))
        else:
            masses = x[..., : self.mass_size]
            if is_plain(masses) and bool((masses < 0).any()):
                raise InputError(
                    f"mass_lstm: the first mass_size={self.mass_size} features of the input are masses and must be at "
                    f"least 0, got {float(masses.min()):.4g}; reorder the features or leave mass_size out"
                )
            m = masses.sum(-1, keepdim=True)
        return torch.cat([F.linear(x, self.weight_ih, self.bias_ih), m.expand(*m.shape[:-1], self.hidden_size)], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        _, c = state
        total = c.sum(-1, keepdim=True)
        a = c / torch.where(total > 0, total, torch.ones_like(total))
        u_i, u_o = F.linear(apply_mask(a, mask), self.weight_hh).chunk(2, -1)
        x_i, x_o, m = x.chunk(3, -1)
        i = torch.softmax(x_i + u_i, -1)
        o = torch.sigmoid(x_o + u_o)
        R = torch.softmax(self.weight_r, 0)
        t = F.linear(c, R) + i * m
        return {"i": i, "o": o, "t": t}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, o, t = self.gates(x, state, mask).values()
        c = (1 - o) * t
        h = o * t
        return h, (h, c)
