"""The minimal LSTM, whose gates do not read the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, init_linear, keep_positive
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class MinLSTMCell(Cell, name="min_lstm", year=2024, idea="linear", parent="lstm"):
    """An LSTM whose gates read only the input and are scaled to add up to 1.

        f  = sigmoid(W_f x)
        i  = sigmoid(W_i x)
        n  = W_n x
        h' = f / (f + i) * h + i / (f + i) * n

    The cell is linear in h, so a parallel scan computes all steps at once. State: h (B, H).
    With `positive`, n = g(W_n x) is above 0, as in `MinGRUCell`. Feng et al. 2024, arXiv 2410.01201.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to the product.
        forget_bias: Initial bias of the forget gate. None initialises it like the other biases.
        positive: Keep candidates above 0.

    Example:
        >>> y, state = seqloom.scan(seqloom.MinLSTMCell(4, 8), torch.randn(3, 10, 4))
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        forget_bias: float | None = None,
        positive: bool = False,
    ) -> None:
        super().__init__(input_size, hidden_size)
        self.positive = positive
        self.forget_bias = forget_bias
        self.weight_ih = empty(3 * hidden_size, input_size)
        self.bias_ih = empty(3 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        if self.forget_bias is not None:
            self.remember(torch.full((self.hidden_size,), self.forget_bias))

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = bias
            if coupled:
                self.bias_ih[self.hidden_size : 2 * self.hidden_size] = -bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        f, i, n = x.chunk(3, -1)
        return {"f": torch.sigmoid(f), "i": torch.sigmoid(i), "n": keep_positive(n) if self.positive else n}

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and b of h' = a * h + b, for any number of steps at once: (..., 3H) -> 2 x (..., H)."""
        f, i, n = self.gates(x, ()).values()
        return f / (f + i), i / (f + i) * n

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        a, b = self.coefficients(x)
        h = a * h + b
        return h, (h,)
