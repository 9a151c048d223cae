"""The simple recurrent unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class SRUCell(Cell, name="sru", year=2017, idea="linear", parent="lstm"):
    """Gates that read the input and, unit by unit, the memory; a highway for the input.

        n  = W_n x                            without a bias
        f  = sigmoid(W_f x + v_f * c)
        r  = sigmoid(W_r x + v_r * c)
        c' = f * c + (1 - f) * n
        h' = r * c' + (1 - r) * s             s = x where input_size = hidden_size, else W_s x

    State: h, which is not read, and c (B, H). Lei et al. 2017, Simple recurrent units for highly parallelizable
    recurrence, arXiv 1709.02755.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both gates.
    """

    memory = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.scale_c = empty(2 * hidden_size)
        self.weight_s = None if input_size == hidden_size else empty(hidden_size, input_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = bias

    def initial_state(self, x: Tensor) -> State:
        return x.new_zeros(x.shape[0], self.hidden_size), x.new_zeros(x.shape[0], self.hidden_size)

    def project(self, x: Tensor) -> Tensor:
        W_n, W_fr = self.weight_ih.split((self.hidden_size, 2 * self.hidden_size))
        s = x if self.weight_s is None else F.linear(x, self.weight_s)
        return torch.cat([F.linear(x, W_n), F.linear(x, W_fr, self.bias_ih), s], -1)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        _, c = state
        c = apply_mask(c, mask)
        n, x_f, x_r, s = x.chunk(4, -1)
        v_f, v_r = self.scale_c.chunk(2)
        f = torch.sigmoid(x_f + v_f * c)
        r = torch.sigmoid(x_r + v_r * c)
        return {"n": n, "f": f, "r": r, "s": s}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        n, f, r, s = self.gates(x, state, mask).values()
        c = f * c + (1 - f) * n
        h = r * c + (1 - r) * s
        return h, (h, c)
