"""A tensor that changes in place between the passes gives an error, as in torch, or right gradients."""

import re

import pytest
import torch
from subjects import KERNEL_SUBJECTS, SUBJECTS, find_loss, open_case

from seqloom.layers.recurrent.layer import Recurrent

LENGTHS = [6, 2, 4]
RAGGED = [s for s in SUBJECTS if s.values[0][1] in KERNEL_SUBJECTS]  # layers choose among these kernels


@pytest.fixture(scope="module")
def case(request, move_weights):
    return open_case(*request.param, move_weights)


def differentiate_or_refuse(case, loss, x=None):
    """Return the gradients of a loss; None if torch says that something was changed."""
    try:
        leaves = [case.x if x is None else x, *case.weights]
        return list(torch.autograd.grad(loss, leaves, allow_unused=True))
    except RuntimeError as error:
        if re.search("modified (by an )?inplace", str(error)):
            return None
        raise


def change_input(case):
    x = case.x.detach().clone().requires_grad_()
    source = x.clone()  # a leaf cannot be changed in place
    loss = find_loss(case.run(x=source))
    with torch.no_grad():
        source.mul_(3)
    return differentiate_or_refuse(case, loss, x)


def change_output(case):
    y = case.run()
    loss = find_loss(y)
    with torch.no_grad():
        y.mul_(3)
    return differentiate_or_refuse(case, loss)


def change_output_with_gradient(case):
    return differentiate_or_refuse(case, find_loss(case.run().mul_(2).div_(2)))


def change_weights(case):
    loss, original = find_loss(case.run()), [w.detach().clone() for w in case.weights]
    with torch.no_grad():
        for w in case.weights:
            w.mul_(1.5)
    gradients = differentiate_or_refuse(case, loss)
    with torch.no_grad():
        for w, value in zip(case.weights, original, strict=True):
            w.copy_(value)
    return gradients


CHANGES = {
    change.__name__: change for change in (change_input, change_output, change_output_with_gradient, change_weights)
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", SUBJECTS, indirect=True)
def test_a_change_gives_an_error_or_the_gradients_of_before(case, change):
    expected = case.differentiate(case.run())
    actual = CHANGES[change](case)
    if actual is not None:
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("case", RAGGED, indirect=True)
def test_lengths_that_change_after_the_call_do_not_change_its_gradients(case):
    assert isinstance(case.layer, Recurrent)
    found = []
    for is_changed in (False, True):
        lengths = torch.tensor(LENGTHS, device=case.x.device)
        y = case.layer(case.x, lengths=lengths)[0]
        if is_changed:
            lengths.fill_(1)
        found.append(differentiate_or_refuse(case, find_loss(y)))
    if found[1] is not None:
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("case", [s for s in RAGGED if "aten" not in s.id], indirect=True)  # it has no resets
def test_resets_that_change_after_the_call_do_not_change_its_gradients(case):
    found = []
    for is_changed in (False, True):
        reset = torch.zeros(case.x.shape[:2], dtype=torch.bool, device=case.x.device)
        reset[1, 3] = True
        y = case.layer(case.x, reset=reset)[0]
        if is_changed:
            reset.fill_(True)
        found.append(differentiate_or_refuse(case, find_loss(y)))
    if found[1] is not None:
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("case", RAGGED, indirect=True)
def test_a_state_that_changes_after_the_call_gives_an_error_or_right_gradients(case):
    _, state = case.layer(case.x)
    found = []
    for is_changed in (False, True):
        given = [0.5 * s.detach() for s in (state if isinstance(state, tuple) else (state,))]
        y = case.layer(case.x, given[0] if len(given) == 1 else tuple(given))[0]
        if is_changed:
            for s in given:
                s.fill_(3)
        found.append(differentiate_or_refuse(case, find_loss(y)))
    if found[1] is not None:
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("kernel", ["loop", pytest.param("compiled", marks=pytest.mark.long)])
def test_time_spans_that_change_after_the_call_do_not_change_its_gradients(kernel):
    layer, x, found = Recurrent("ode_gru", 3, 4, batch_first=True, kernel=kernel), torch.randn(2, 6, 3), []
    for is_changed in (False, True):
        spans = torch.linspace(0.5, 2, 12).view(2, 6)
        loss = find_loss(layer(x, timespans=spans)[0])
        if is_changed:
            spans.mul_(10)
        found.append(torch.autograd.grad(loss, list(layer.parameters())))
    torch.testing.assert_close(*found)
