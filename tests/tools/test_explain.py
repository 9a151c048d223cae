import re

import pytest
import torch

import seqloom
from seqloom.core.errors import UserTypeError


class Pendulum(seqloom.Cell):
    """A cell with two states that does not define `initial_state`."""

    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = torch.nn.Linear(input_size, hidden_size)

    def step(self, u, state):
        x, v = state
        v = v + 0.1 * (self.w(u) - torch.sin(x))
        x = x + 0.1 * v
        return x, (x, v)


class Started(Pendulum):
    def initial_state(self, x):
        zeros = x.new_zeros(x.shape[0], self.hidden_size)
        return zeros, zeros


class Branching(Started):
    def step(self, u, state):
        x, v = state
        return super().step(u, (x, v / 2 if v.norm() > 10 else v))


def test_too_few_states_name_the_method_to_define():
    with pytest.raises(ValueError, match="not enough values to unpack") as raised:
        seqloom.Recurrent(Pendulum, 3, 4)(torch.randn(5, 2, 3))
    (note,) = raised.value.__notes__
    assert "Pendulum starts from one state" in note and "initial_state(x)" in note


def test_an_explanation_says_what_a_single_step_runs():
    text = str(seqloom.explain(seqloom.Recurrent(Started, 3, 4), torch.randn(5, 2, 3)))
    assert "step: a sequence of one step; the engine's step does not support cell 'Started'" in text


def test_explain_without_an_input_says_what_is_missing():
    with pytest.raises(UserTypeError, match=re.escape("needs its input: explain(layer, x)")):
        seqloom.explain(seqloom.GRU(3, 4))


def test_compile_report_says_why_a_cell_runs_in_the_loop():
    report = seqloom.compile_report(seqloom.Recurrent(Branching, 3, 4))
    assert str(report).startswith("Branching runs in the loop: step depends on the value of a tensor, by a branch")
    assert "test_explain.py" in report.reason


def test_compile_report_of_a_class_asks_for_a_cell():
    with pytest.raises(UserTypeError, match=re.escape("got its class; write Started(input_size, hidden_size)")):
        seqloom.compile_report(Started)


def test_compile_report_leaves_out_operators_that_only_change_shapes():
    text = str(seqloom.compile_report(seqloom.GRUCell(3, 4)))
    assert "torch, for all steps at once:\n    mm = x @ weight_ih.T\n" in text
