"""An RNN with a matrix as its state."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.cells._parts import apply_mask, empty, init_linear
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError


class M2RNNCell(Cell, name="m2rnn", year=2026, idea="memory", parent="rnn"):
    """A nonlinear RNN whose state is a matrix, written by outer products.

        k, q, v = W_k x, W_q x, W_v x         key and query of size `keys`, value of size H
        f  = sigmoid(w_f x)                   one number
        M' = f M + (1 - f) tanh(M U + k v^T)
        h' = q^T M'

    U starts as the identity. State: h, which is not read, (B, H), and M (B, keys, H). Mishra et al. 2026, arXiv
    2603.14360; one head, without the convolutions that the paper puts before k, q and v.

    Args:
        input_size: Number of input features, D.
        hidden_size: Number of units, H.
        bias: Add a bias to W x.
        keys: Number of rows of M.

    Raises:
        UserError: If `keys` is below 1.
    """

    memory = 1

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, keys: int = 4) -> None:
        super().__init__(input_size, hidden_size)
        if keys < 1:
            raise UserError(f"keys must be at least 1, got {keys}")
        self.keys = keys
        self.weight_ih = empty(2 * keys + hidden_size + 1, input_size)
        self.bias_ih = empty(2 * keys + hidden_size + 1) if bias else None
        self.weight_hh = empty(hidden_size, hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_linear(self.weight_ih, self.bias_ih)
        nn.init.eye_(self.weight_hh)

    def remember(self, bias: Tensor, coupled: bool = False) -> None:
        if self.bias_ih is None:
            raise UserError("cannot set a gate bias: the cell was constructed with bias=False")
        with torch.no_grad():
            self.bias_ih[-1] = bias.mean()  # one gate for all units

    def initial_state(self, x: Tensor) -> State:
        B, H = x.shape[0], self.hidden_size
        return x.new_zeros(B, H), x.new_zeros(B, self.keys, H)

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih, self.bias_ih)

    def gates(self, x: Tensor, state: State, mask: Tensor | None = None) -> dict[str, Tensor]:
        k, q, v, f = x.split((self.keys, self.keys, self.hidden_size, 1), -1)
        return {"k": k, "q": q, "v": v, "f": torch.sigmoid(f)}

    def step(self, x: Tensor, state: State, mask: Tensor | None = None) -> tuple[Tensor, State]:
        _, M = state
        k, q, v, f = self.gates(x, state, mask).values()
        rows = []
        for row, k_i in zip(M.unbind(1), k.split(1, -1), strict=True):  # row by row: see linear_per_slot in attn_rnn.py
            n = torch.tanh(F.linear(apply_mask(row, mask), self.weight_hh) + k_i * v)
            rows.append(f * row + (1 - f) * n)
        M = torch.stack(rows, 1)
        h = (q.unsqueeze(-1) * M).sum(1)
        return h, (h, M)
