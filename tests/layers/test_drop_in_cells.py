"""seqloom.RNNCell, LSTMCell and GRUCell in the place of torch's."""

import pytest
import torch
from torch import nn

import seqloom

KINDS = ["RNNCell", "LSTMCell", "GRUCell"]
each_kind = pytest.mark.parametrize("kind", KINDS)


def pair(kind, *args, **kwargs):
    theirs, ours = (getattr(library, kind)(*args, **kwargs) for library in (nn, seqloom))
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def state(kind, *shape):
    torch.manual_seed(1)
    made = tuple(torch.randn(*shape, requires_grad=True) for _ in range(1 + (kind == "LSTMCell")))
    return made if len(made) > 1 else made[0]


def tensors(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


@pytest.mark.parametrize("rows", [(), (2,)], ids=["one row", "a batch"])
@pytest.mark.parametrize("bias", [True, False])
@each_kind
def test_a_cell_steps_as_torchs_does(kind, bias, rows):
    theirs, ours = pair(kind, 3, 4, bias)
    x = torch.randn(*rows, 3, requires_grad=True)
    actual = []
    for cell in (ours, theirs):
        h = state(kind, *rows, 4)
        after = cell(x, h)
        assert type(after) is (tuple if kind == "LSTMCell" else torch.Tensor)
        loss = sum(s.square().sum() for s in tensors(after))
        actual.append([*tensors(after), *torch.autograd.grad(loss, [x, *tensors(h), *cell.parameters()])])
    for mine, torchs in zip(*actual, strict=True):
        torch.testing.assert_close(mine, torchs, rtol=0, atol=1e-6)


@each_kind
def test_a_cells_state_starts_at_zero(kind):
    theirs, ours = pair(kind, 3, 4)
    x = torch.randn(2, 3)
    for mine, torchs in zip(tensors(ours(x)), tensors(theirs(x)), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=0, atol=1e-6)


@each_kind
def test_a_cell_has_torchs_names_and_first_weights(kind):
    torch.manual_seed(7)
    theirs = dict(getattr(nn, kind)(3, 4).named_parameters())
    torch.manual_seed(7)
    ours = dict(getattr(seqloom, kind)(3, 4).named_parameters())
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_an_rnn_cell_takes_relu_as_its_fourth_argument():
    theirs, ours = pair("RNNCell", 3, 4, True, "relu")
    x = torch.randn(2, 3)
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-6)
    assert ours(x).min() == 0


@each_kind
def test_a_cell_takes_device_and_dtype(kind):
    cell = getattr(seqloom, kind)(3, 4, device="meta", dtype=torch.float64)
    assert all(p.is_meta and p.dtype == torch.float64 for p in cell.parameters())


@each_kind
def test_a_cell_does_not_broadcast_its_state(kind):
    with pytest.raises(RuntimeError, match=r"3.*1|1.*3"):
        getattr(seqloom, kind)(3, 4)(torch.randn(3, 3), state(kind, 1, 4))


@each_kind
def test_a_cell_takes_one_step_only(kind):
    with pytest.raises(ValueError, match="3"):
        getattr(seqloom, kind)(3, 4)(torch.randn(5, 2, 3))


@each_kind
def test_a_cell_takes_its_arguments_by_torchs_names(kind):
    theirs, ours = pair(kind, 3, 4)
    given = {"input": torch.randn(2, 3), "hx": state(kind, 2, 4)}
    torch.testing.assert_close(ours(**given), theirs(**given), rtol=0, atol=1e-6)


@each_kind
def test_a_cell_names_what_does_not_fit(kind):
    cell, x, h = getattr(seqloom, kind)(3, 4), torch.randn(2, 3), torch.zeros(2, 4)
    for wrong, error, match in [
        ((x.double(),), TypeError, "input is torch.*64, the layer's weights are torch.*32"),
        (([0.0] * 3,), TypeError, r"input must be a Tensor \(B, 3\) or \(3,\), got a list"),
        ((x, (h, h, h)), ValueError, "hx must be (one tensor|a tuple of 2 tensors, such as .h, c.), got a tuple of 3"),
        ((x, (h.double(),) * (1 + (kind == "LSTMCell"))), TypeError, r"hx\[0\] is torch.float64, the input torch"),
    ]:
        with pytest.raises(error, match=match):
            cell(*wrong)


@each_kind
def test_a_cell_derived_from_another_steps_by_its_own_equations(kind):
    parent = getattr(seqloom, kind)

    class Still(parent):
        def step(self, x, state):
            return state[0], state

    x, before = torch.randn(2, 3), state(kind, 2, 4)
    assert Still(3, 4)(x, before) is before or torch.equal(Still(3, 4)(x, before)[0], before[0])
    assert not torch.equal(parent(3, 4)(x, before)[0], before[0])
