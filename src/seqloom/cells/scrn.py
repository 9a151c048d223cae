"""The structurally constrained recurrent network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask, empty
from seqloom.core.cell import State
from seqloom.core.errors import UserError


class SCRNCell(GatedCell, name="scrn", year=2014, idea="plain", parent="rnn"):
    """An RNN beside a slow linear context.

        s' = (1 - alpha) * (B x) + alpha * s
        h' = sigmoid(A x + R h + P s')
        y' = tanh(U h' + V s')

    State: h and s (B, H); the output y is computed from both. Mikolov et al. 2014, Learning longer memory in recurrent
    neural networks, arXiv 1412.7753.

    The paper keeps alpha at 0.95, as here. torchrecurrent 0.2.5 feeds y back as h; in the paper h is fed back and y is
    only the output.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add biases.
        alpha: Share of the old context in the new one, 0 to 1.

    Raises:
        UserError: If `alpha` is out of range.
    """

    w, u, states = 2, 1, 2

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, alpha: float = 0.95) -> None:
        if not 0 <= alpha <= 1:
            raise UserError(f"alpha must be between 0 and 1, got {alpha}")
        super().__init__(input_size, hidden_size, bias)
        self.alpha = alpha
        self.weight_sh = empty(hidden_size, hidden_size)
        self.weight_hy = empty(hidden_size, hidden_size)
        self.weight_sy = empty(hidden_size, hidden_size)
        self.bias_y = empty(hidden_size) if bias else None
        self.reset_parameters()

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, s = state
        Bx, Ax = x.chunk(2, -1)
        s = (1 - self.alpha) * Bx + self.alpha * s
        h = torch.sigmoid(Ax + self.product(apply_mask(h, mask)) + F.linear(s, self.weight_sh))
        return {"s": s, "h": h}

    def output(self, state: State) -> Tensor:
        h, s = state
        return torch.tanh(F.linear(h, self.weight_hy, self.bias_y) + F.linear(s, self.weight_sy))

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        s, h = self.gates(x, state, mask).values()
        return self.output((h, s)), (h, s)
