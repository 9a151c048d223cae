"""The minimal GRU, whose gates do not read the state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import empty, init_linear, keep_positive
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class MinGRUCell(Cell, name="min_gru", year=2024, idea="linear", parent="gru"):
    """A GRU without a reset gate, whose gate and candidate read only the input.

        z  = sigmoid(W_z x)
        n  = W_n x
        h' = (1 - z) * h + z * n

    Here z writes. The cell is linear in h, so a parallel scan computes all steps at once. State: h (B, H).
    With `positive`, n = g(W_n x) is above 0: g(x) = x + 1/2 for x >= 0, else sigmoid(x). That is the paper's form in
    log space; the scan here multiplies and adds numbers between 0 and h, which needs no logarithms.
    Feng et al. 2024, arXiv 2410.01201.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to the product.
        positive: Keep candidates above 0.

    Example:
        >>> y, state = seqloom.scan(seqloom.MinGRUCell(4, 8), torch.randn(3, 10, 4))
        >>> y.shape
        torch.Size([3, 10, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, positive: bool = False) -> None:
        super().__init__(input_size, hidden_size)
        self.positive = positive
        self.weight_ih = empty(2 * hidden_size, input_size)
        self.bias_ih = empty(2 * hidden_size) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = -bias

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State) -> dict[str, Tensor]:
        z, n = x.chunk(2, -1)
        return {"z": torch.sigmoid(z), "n": keep_positive(n) if self.positive else n}

    def coefficients(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a and b of h' = a * h + b, for any number of steps at once: (..., 2H) -> 2 x (..., H)."""
        z, n = self.gates(x, ()).values()
        return 1 - z, z * n

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        (h,) = state
        a, b = self.coefficients(x)
        h = a * h + b
        return h, (h,)
