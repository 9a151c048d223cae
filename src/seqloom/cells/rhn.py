"""The recurrent highway network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class RHNCell(GatedCell, name="rhn", year=2016, idea="depth", parent="ugrnn"):
    """Several gated layers inside one step.

        n_1 = tanh(W_n x + U_n1 s_0)          s_0 = h
        t_1 = sigmoid(W_t x + U_t1 s_0)
        n_k = tanh(U_nk s_(k-1))              k = 2 .. depth
        t_k = sigmoid(U_tk s_(k-1))
        s_k = t_k * n_k + (1 - t_k) * s_(k-1)
        h'  = s_depth

    State: h (B, H). Zilly et al. 2016, Recurrent highway networks, arXiv 1607.03474.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to every product.
        depth: Number of layers inside a step.

    Raises:
        UserError: If `depth` is below 1.
    """

    w, u = 2, 2
    keep = (1, 1, -1)

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, depth: int = 3) -> None:
        if depth < 1:
            raise UserError(f"depth must be at least 1, got {depth}")
        super().__init__(input_size, hidden_size, bias)
        self.depth = depth
        self.weight_ss = empty((depth - 1) * 2 * hidden_size, hidden_size) if depth > 1 else None
        self.bias_ss = empty((depth - 1) * 2 * hidden_size) if bias and depth > 1 else None
        self.reset_parameters()

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        super().remember(bias)
        if self.bias_ss is not None:
            with torch.no_grad():
                for part in self.bias_ss.chunk(self.depth - 1):
                    part[self.hidden_size :] = -bias

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        (h,) = state
        layers = [x + self.product(apply_mask(h, mask))]
        if self.weight_ss is not None:
            biases = (None,) * (self.depth - 1) if self.bias_ss is None else self.bias_ss.chunk(self.depth - 1)
            deeper = list(zip(self.weight_ss.chunk(self.depth - 1), biases, strict=True))
        for k in range(self.depth):
            a = layers[0] if k == 0 else F.linear(apply_mask(h, mask), *deeper[k - 1])
            n, t = a.chunk(2, -1)
            h = torch.sigmoid(t) * torch.tanh(n) + torch.sigmoid(-t) * h
        return h, (h,)
