"""The gated recurrent unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, can_use_torch, empty, set_gate
from seqloom.core.cell import Cell, State


class GRUCell(Cell, name="gru", year=2014, idea="gru", parent="lstm"):
    """Reset and update gates around a tanh candidate.

        r  = sigmoid(W_r x + U_r h)
        z  = sigmoid(W_z x + U_z h)
        n  = tanh(W_n x + r * (U_n h))          reset_after=True, as torch and cuDNN have it
        n  = tanh(W_n x + U_n (r * h))          reset_after=False, as the paper has it
        h' = (1 - z) * n + z * h

    Here z keeps: z = 1 leaves h unchanged. Many texts write h' = z * n + (1 - z) * h, where z writes; since
    sigmoid(-a) = 1 - sigmoid(a), that is this cell with the signs of W_z, U_z and b_z flipped. State: h (B, H).
    Cho et al. 2014, arXiv 1406.1078.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
        reset_after: Apply the reset gate after the recurrent product.
        update_bias: Initial bias of z; larger values make the cell keep its state longer. None initialises it like the
            other biases.

    Example:
        >>> cell = seqloom.GRUCell(4, 8)  # same weights and results as torch.nn.GRUCell(4, 8)
        >>> h = cell(torch.randn(3, 4))  # one step: (B, D) -> (B, H)
        >>> y, state = seqloom.scan(cell, torch.randn(3, 10, 4), (h,))
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        reset_after: bool = True,
        update_bias: float | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.reset_after = reset_after
        self.update_bias = update_bias
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.weight_hh = empty(3 * hidden_size, hidden_size)
        self.bias_ih = empty(3 * hidden_size) if bias else None
        self.bias_hh = empty(3 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()
        if self.update_bias is not None:
            self.remember(torch.full((self.hidden_size,), self.update_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        set_gate(1, bias, self.bias_ih, self.bias_hh)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        (h,) = state
        h, H = apply_mask(h, mask), self.hidden_size
        if self.reset_after:
            x_r, x_z, x_n = x.chunk(3, -1)
            h_r, h_z, h_n = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
            r = torch.sigmoid(x_r + h_r)
            z = torch.sigmoid(x_z + h_z)
            n = torch.tanh(x_n + r * h_n)
        else:
            U_rz, U_n = self.weight_hh.split((2 * H, H))
            b_rz, b_n = (None, None) if self.bias_hh is None else self.bias_hh.split((2 * H, H))
            x_rz, x_n = x.split((2 * H, H), -1)
            r, z = torch.sigmoid(x_rz + F.linear(h, U_rz, b_rz)).chunk(2, -1)
            n = torch.tanh(x_n + F.linear(r * h, U_n, b_n))
        return {"r": r, "z": z, "n": n}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        _, z, n = self.gates(x, state, mask).values()
        h = (1 - z) * n + z * h
        return h, (h,)

    def whole_step(self, x: Tensor, state: State) -> State:
        if self.reset_after and type(self) is GRUCell and can_use_torch(x):
            return (torch.gru_cell(x, state[0], self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh),)
        return super().whole_step(x, state)
