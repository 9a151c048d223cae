"""A cell of your own: train it with `seqloom compare --models gru,examples/my_cell.py:MyCell`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom import Cell


class MyCell(Cell, name="my_cell"):
    """A gate almost for free: gate and candidate share one product (FastGRNN).

        s  = W x + U h
        z  = sigmoid(s + b_z)
        n  = tanh(s + b_n)
        h' = (a (1 - z) + c) * n + z * h        a, c: two learned numbers in (0, 1)

    As many weights as a plain RNN. Kusupati et al. 2018, arXiv 1901.02358.
    """

    def __init__(self, input_size: int, hidden_size: int) -> None:
        super().__init__(input_size, hidden_size)
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.weight_hh = nn.Parameter(torch.empty(hidden_size, hidden_size))
        self.bias_z = nn.Parameter(torch.empty(hidden_size))
        self.bias_n = nn.Parameter(torch.empty(hidden_size))
        self.mix = nn.Parameter(torch.empty(2))  # a and c before their sigmoid
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.uniform_()
        with torch.no_grad():
            self.mix.copy_(torch.tensor([1.0, -4.0]))

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight_ih)

    def step(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (h,) = state
        s = x + F.linear(h, self.weight_hh)
        z = torch.sigmoid(s + self.bias_z)
        n = torch.tanh(s + self.bias_n)
        a, c = torch.sigmoid(self.mix)
        h = (a * (1 - z) + c) * n + z * h
        return h, (h,)
