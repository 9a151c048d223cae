"""Write your own cell: equations in the docstring, then one line of code each.

    python examples/my_cell.py                                              # check the cell and train it on a toy task
    seqloom compare --models gru,examples/my_cell.py:MyCell                 # train it beside others

The layer around it (`seqloom.Recurrent`) adds layers, directions, lengths, resets, dropout, streaming and export.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqloom


class MyCell(seqloom.Cell, name="my_cell"):
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


def main(steps: int = 200) -> float:
    """Check the cell, train it to recall the first of ten numbers, and return the mean squared error."""
    torch.manual_seed(0)
    seqloom.testing.check_cell(MyCell)  # shapes, gradients, lengths, streaming, ...
    model = seqloom.Classify(seqloom.Recurrent(MyCell, 1, 32, batch_first=True), outputs=1)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(steps):
        x = torch.rand(64, 10, 1)
        loss = model.loss(x, x[:, 0])
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimiser.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: mean squared error {float(loss.detach()):.4f} (answering the mean: 0.0833)")
    return float(loss.detach())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    main(**vars(parser.parse_args()))
