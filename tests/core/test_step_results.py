"""What the step of a person's cell may return."""

import pytest
import torch

import seqloom
from seqloom.core.errors import UserError, UserTypeError


def run(step, states=1):
    def initial_state(self, x):
        return (x.new_zeros(x.shape[0], 3),) * states

    kind = type("Mine", (seqloom.Cell,), {"step": step, "initial_state": initial_state})
    return seqloom.Recurrent(kind, 3, 3, kernel="loop")(torch.randn(2, 4, 3))


@pytest.mark.parametrize(
    ("step", "states", "expected", "returned"),
    [
        (lambda *args: args[1], 1, r"y, \(h,\)", "Tensor"),
        (lambda _, x, s: (x, s[0]), 1, r"y, \(h,\)", r"\(Tensor, Tensor\)"),
        (lambda *args: (args[1], ()), 1, r"y, \(h,\)", r"\(Tensor, \(\)\)"),
        (lambda *args: (args[1],), 1, r"y, \(h,\)", r"\(Tensor,\)"),
        (lambda _, x, s: (x, s[:1]), 2, r"y, \(state_0, state_1\)", r"\(Tensor, \(Tensor,\)\)"),
        (lambda *_: None, 1, r"y, \(h,\)", "NoneType"),
    ],
)
def test_a_wrong_result_is_shown_beside_a_right_one(step, states, expected, returned):
    with pytest.raises(UserTypeError, match=f"such as `return {expected}`; it returned {returned}$"):
        run(step, states)


@pytest.mark.parametrize("wrap", [tuple, list])
def test_the_state_may_be_a_tuple_or_a_list(wrap):
    y, _ = run(lambda _, x, s: (x + s[0], wrap(s)))
    assert y.shape == (2, 4, 3)


def test_a_step_that_unpacks_another_number_of_states_is_named():
    def step(self, x, state):
        h, c = state
        return h, (h, c)

    with pytest.raises(UserError, match=r"Mine\.step cannot unpack its 1 state"):
        run(step)


def test_another_error_of_a_step_is_raised_as_it_is():
    def step(self, x, state):
        raise ValueError("of its own")

    with pytest.raises(ValueError, match=r"^of its own$"):
        run(step)
