"""Base class of most cells: one product of the input, one of the state, and gates that are blocks of the two."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError

Block = tuple[Tensor, Tensor | None]  # the weight (H, H) and the bias (H,) of one gate, for F.linear(h, *block)


class GatedCell(Cell):
    """Base class of cells whose gates are blocks of H rows of W and U.

    W x is computed for all steps at once, U h in each step. Each product has a bias, as in torch's layers: the two
    biases of a gate add up to the one of a paper. Parameters: weight_ih (w H, D), weight_hh (u H, H), bias_ih (w H,)
    and bias_hh (u H,), drawn as torch.nn.GRU draws its own.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.

    Attributes:
        w: Number of blocks of W, which reads the input.
        u: Number of blocks of U, which reads the state.
        states: Number of tensors (B, H) in the state; all start at zero.
        keep: The block of W and the block of U whose gate keeps the memory (None if it has no block of U) and the sign
            with which that gate's bias keeps more; None if no gate does.
        enter: The block of W and the block of U of the input gate, which `remember(coupled=True)` closes as far as the
            other gate opens; None if the cell has none.
    """

    w: ClassVar[int] = 1
    u: ClassVar[int] = 1
    states: ClassVar[int] = 1
    keep: ClassVar[tuple[int, int | None, int] | None] = None
    enter: ClassVar[tuple[int, int] | None] = None

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = empty(self.w * hidden_size, input_size)
        self.weight_hh = empty(self.u * hidden_size, hidden_size)
        self.bias_ih = empty(self.w * hidden_size) if bias else None
        self.bias_hh = empty(self.u * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()

    def initial_state(self, x: Tensor) -> State:
        return tuple(x.new_zeros(x.shape[0], self.hidden_size) for _ in range(self.states))

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def product(self, h: Tensor) -> Tensor:
        """Return U h, (B, u H)."""
        return F.linear(h, self.weight_hh, self.bias_hh)

    def blocks(self) -> list[Block]:
        """Return each block of U with its bias, for cells that multiply the blocks by different vectors."""
        biases = (None,) * self.u if self.bias_hh is None else self.bias_hh.chunk(self.u)
        return list(zip(self.weight_hh.chunk(self.u), biases, strict=True))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.keep is None:
            return super().remember(bias, coupled)
        read, recur, sign = self.keep
        self._set_gate(read, recur, sign * bias)
        if coupled and self.enter is not None:
            self._set_gate(*self.enter, -bias)
        return None

    def _set_gate(self, read: int, recur: int | None, bias: Tensor) -> None:
        """Set the bias of a gate: all of it in a block of bias_ih, 0 in a block of bias_hh."""
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih.view(-1, self.hidden_size)[read] = bias
            if recur is not None and self.bias_hh is not None:
                self.bias_hh.view(-1, self.hidden_size)[recur] = 0.0
