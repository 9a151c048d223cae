"""A plain RNN with attention over its last outputs."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class RNNAttentionCell(Cell, name="rnn_attention", year=2016, idea="memory", parent="rnn"):
    """A plain RNN with attention over its last `window` outputs.

        K  = [h_(t-window) .. h_(t-1)]          as many as exist
        a  = softmax((W_q h) K^T / sqrt(H))
        c  = a K
        h' = tanh(W x + U h + V c)

    State: h (B, H), the window K (B, window, H), and 1 for each of its rows that is filled, (B, window).
    Cheng et al. 2016 (LSTMN), arXiv 1601.06733, with the plain RNN as its cell.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        window: Number of past outputs to attend to.

    Raises:
        UserError: If `window` is below 1.

    Example:
        >>> y, (h, K, filled) = seqloom.scan(seqloom.RNNAttentionCell(4, 8, window=5), torch.randn(3, 10, 4))
        >>> K.shape
        torch.Size([3, 5, 8])
    """

    def __init__(self, input_size: int, hidden_size: int, window: int = 16) -> None:
        super().__init__(input_size, hidden_size)
        if window < 1:
            raise UserError(f"window must be at least 1, got {window}")
        self.window = window
        self.weight_ih = empty(hidden_size, input_size)
        self.bias_ih = empty(hidden_size)
        self.weight_hh = empty(hidden_size, hidden_size)
        self.weight_ch = empty(hidden_size, hidden_size)
        self.weight_q = empty(hidden_size, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        for weight in (self.weight_hh, self.weight_ch, self.weight_q):
            init_linear(weight)

    def initial_state(self, x: Tensor) -> State:
        B, H = x.shape[0], self.hidden_size
        return x.new_zeros(B, H), x.new_zeros(B, self.window, H), x.new_zeros(B, self.window)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, K, filled = state
        q = F.linear(apply_mask(h, mask), self.weight_q)
        s = (q.unsqueeze(1) * K).sum(-1) / math.sqrt(self.hidden_size)
        a = torch.softmax(torch.where(filled > 0, s, -1e4), -1) * filled  # all 0 if no row is filled
        c = (a.unsqueeze(-1) * K).sum(1)
        return {"a": a, "c": c}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        h, K, filled = state
        _, c = self.gates(x, state, mask).values()
        h = torch.tanh(x + F.linear(apply_mask(h, mask), self.weight_hh) + F.linear(c, self.weight_ch))
        K = torch.cat([K[:, 1:], h.unsqueeze(1)], 1)
        filled = torch.cat([filled[:, 1:], torch.ones_like(filled[:, :1])], 1)
        return h, (h, K, filled)
