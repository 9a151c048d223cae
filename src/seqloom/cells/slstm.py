"""The sLSTM of xLSTM: exponential gates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cells._gated import GatedCell
from seqloom.cells._parts import apply_mask
from seqloom.core.cell import State

LOWEST = -1e4  # initial m: below every gate, and finite in float16


class SLSTMCell(GatedCell, name="slstm", year=2024, idea="lstm", parent="lstm"):
    """An LSTM with an exponential input gate, a normaliser and a stabiliser.

        a  = W_i x + U_i h
        l  = log(sigmoid(W_f x + U_f h))
        z  = tanh(W_z x + U_z h)
        o  = sigmoid(W_o x + U_o h)
        m' = max(l + m, a)
        i  = exp(a - m')
        f  = exp(l + m - m')
        c' = f * c + i * z
        n' = f * n + i
        h' = o * c' / n'

    exp(m) is a common factor of c and n that keeps the exponentials finite: h does not depend on it. State: h, c, n and
    m (B, H); m starts at -10000, so that the first step sets m' = a.

    Beck et al. 2024, xLSTM: extended long short-term memory, arXiv 2405.04517; one head, and sigmoid for the forget
    gate.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to both products.
    """

    w, u, states = 4, 4, 4
    keep, enter = (1, 1, 1), (0, 0)

    def initial_state(self, x: Tensor) -> State:
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        return zeros, zeros, zeros, torch.full_like(zeros, LOWEST)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        h, _, _, m = state
        a, x_f, x_z, x_o = (x + self.product(apply_mask(h, mask))).chunk(4, -1)
        l_m = F.logsigmoid(x_f) + m
        z = torch.tanh(x_z)
        o = torch.sigmoid(x_o)
        m = torch.maximum(l_m, a)
        i = torch.exp(a - m)
        f = torch.exp(l_m - m)
        return {"z": z, "o": o, "m": m, "i": i, "f": f}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, c, n, _ = state
        z, o, m, i, f = self.gates(x, state, mask).values()
        c = f * c + i * z
        n = f * n + i
        h = o * c / n
        return h, (h, c, n, m)
