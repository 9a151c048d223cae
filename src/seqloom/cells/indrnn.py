"""The independently recurrent network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State


class IndRNNCell(Cell, name="indrnn", year=2018, idea="plain", parent="rnn"):
    """Independent units: each reads its own past only, so the recurrent matrix is a vector.

        h' = relu(W x + b + u * h)

    u starts uniform in [0, 1], so memory spans differ between units. State: h (B, H).
    Li et al. 2018, arXiv 1803.04831.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add the bias b.

    Example:
        >>> cell = seqloom.IndRNNCell(4, 8)
        >>> cell(torch.randn(3, 4)).shape  # one step: (B, D) -> (B, H)
        torch.Size([3, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(hidden_size, input_size)
        self.bias_ih = empty(hidden_size) if bias else None
        self.scale_hh = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        nn.init.uniform_(self.scale_hh, 0.0, 1.0)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        h = torch.relu(x + self.scale_hh * apply_mask(h, mask))
        return h, (h,)
