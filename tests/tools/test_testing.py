"""The public checks catch faulty cells."""

import pytest
import torch
from torch import nn

from seqloom import Cell
from seqloom.tools.testing import check_cell


class Sound(Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        (h,) = state
        h = torch.tanh(self.w(torch.cat([x, h], -1)))
        return h, (h,)


class MixesRows(Sound):
    def step(self, x, state):
        h, _ = super().step(x, state)
        h = h - h.mean(0)
        return h, (h,)


class Random(Sound):
    def step(self, x, state):
        h, _ = super().step(x, state)
        h = h + 0.01 * torch.rand_like(h)
        return h, (h,)


class WrongGradient(Sound):
    def step(self, x, state):
        h, _ = super().step(x, state)
        h = h + (h * h).detach()
        return h, (h,)


class Remembers(Sound):
    """A cell that stores something outside its state."""

    last = 0.0

    def step(self, x, state):
        h, _ = super().step(x, state)
        h = h + 0.1 * self.last
        self.last = float(h.detach().mean())
        return h, (h,)


class GrowsState(Sound):
    def step(self, x, state):
        h, _ = super().step(x, state)
        return h, (torch.cat([h, h], -1),)


class OtherOutput(Sound):
    def step(self, x, state):
        h, after = super().step(x, state)
        return 2 * h, after


class NotInStateDict(Sound):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.b = [torch.randn(hidden_size)]

    def step(self, x, state):
        h, _ = super().step(x, state)
        h = h + self.b[0].to(h.dtype)
        return h, (h,)


class OneType(Sound):
    def step(self, x, state):
        h, _ = super().step(x, state)
        h = (h.double() * torch.ones(self.hidden_size, dtype=torch.float64)).float()
        return h, (h,)


def test_a_sound_cell_of_a_few_lines_passes():
    check_cell(Sound)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (MixesRows, "differs from the same row alone"),
        (Random, "not deterministic|Jacobian"),
        (WrongGradient, "Jacobian mismatch"),
        (Remembers, "differ"),
        (GrowsState, "changes shape"),
        (OtherOutput, r"output\(state\) must equal"),
        (NotInStateDict, "not in it"),
        (OneType, "changes type"),
    ],
)
def test_a_faulty_cell_is_caught_with_its_reason(cell, reason):
    with pytest.raises((AssertionError, RuntimeError), match=reason):
        check_cell(cell)
