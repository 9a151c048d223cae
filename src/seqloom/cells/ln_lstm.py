"""The LSTM with layer normalisation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty
from seqloom.cells.ln_gru import normalise
from seqloom.cells.lstm import LSTMCell
from seqloom.core.cell import State


class LNLSTMCell(LSTMCell, name="ln_lstm", year=2016, idea="lstm", parent="lstm"):
    """The LSTM with layer normalisation of both products and of the memory.

        i, f, o = sigmoid(N(W x) + N(U h))      each gate with its own rows
        g  = tanh(N(W_g x) + N(U_g h))
        c' = f * c + i * g
        h' = o * tanh(N(c'))                    N: LayerNorm over the H units of one gate

    State: h and c, (B, H) each. Ba et al. 2016, arXiv 1607.06450.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        forget_bias: Initial bias of the forget gate. None initialises it like the other biases.

    Example:
        >>> cell = seqloom.LNLSTMCell(4, 8, forget_bias=1.0)
        >>> h, c = cell(torch.randn(3, 4))  # one step: (B, D) -> 2 x (B, H)
        >>> h.shape
        torch.Size([3, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, forget_bias: float | None = None) -> None:
        super().__init__(input_size, hidden_size, bias=True, forget_bias=forget_bias)
        self.scale_ih = empty(4 * hidden_size)
        self.scale_hh = empty(4 * hidden_size)
        self.scale_c = empty(hidden_size)
        self.bias_c = empty(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "bias_c"):
            for scale in (self.scale_ih, self.scale_hh, self.scale_c):
                nn.init.ones_(scale)
            nn.init.zeros_(self.bias_c)

    def project(self, x: Tensor) -> Tensor:
        return normalise(F.linear(x, self.weight_ih), self.scale_ih, self.bias_ih, self.hidden_size)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _ = state
        u = F.linear(apply_mask(h, mask), self.weight_hh)
        u = normalise(u, self.scale_hh, self.bias_hh, self.hidden_size)
        i, f, g, o = (x + u).chunk(4, -1)
        return {"i": torch.sigmoid(i), "f": torch.sigmoid(f), "g": torch.tanh(g), "o": torch.sigmoid(o)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c = state
        i, f, g, o = self.gates(x, state, mask).values()
        c = f * c + i * g
        h = o * torch.tanh(F.layer_norm(c, (self.hidden_size,), self.scale_c, self.bias_c))
        return h, (h, c)
