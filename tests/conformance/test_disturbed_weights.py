"""Gradients are right when a layer's weights move, are replaced or are copied between the two passes."""

import copy
import io
import pickle

import pytest
import torch
from subjects import KERNEL_SUBJECTS, ON_CPU, ON_GPU, SUBJECTS, make_subject, open_case

from seqloom.kernels.registry import KERNELS


@pytest.fixture(scope="module")
def case(request, move_weights):
    """Return a subject that the rows share: each leaves the values of the weights as they were."""
    return open_case(*request.param, move_weights)


@pytest.fixture(scope="module")
def expected(case):
    return case.differentiate(case.run())


def free_and_refill(case):
    y = case.run()
    case.move(case.weights)
    return case.differentiate(y)


def free_and_refill_twice(case):
    y = case.run()
    case.move(case.weights)
    case.differentiate(y, retain_graph=True)
    case.move(case.weights)
    return case.differentiate(y)


def replace_data(case):
    y = case.run()
    for w in case.weights:
        w.data = w.detach().clone()
    return case.differentiate(y)


def offload(case):
    """ZeRO-3: the weights leave the device without a trace, and come back before backward."""
    y, kept = case.run(), [w.detach().to("cpu", copy=True) for w in case.weights]
    for w in case.weights:
        w.data = w.new_empty(0)
    litter = [torch.full_like(w, 1e30, device=case.x.device) for w in kept for _ in range(4)]
    for w, value in zip(case.weights, kept, strict=True):
        w.data = value.to(case.x.device, copy=True)
    del litter
    return case.differentiate(y)


def change_layout(case):
    """The same values at the same place, but the memory of matrices has the columns first."""
    y = case.run()
    for w in case.weights:
        if w.dim() == 2:
            w.data = w.detach().t().contiguous().t()
    gradients = case.differentiate(y)
    for w in case.weights:
        w.data = w.detach().contiguous()
    return gradients


def copy_and_pickle(case):
    y = case.run()
    other, stream = copy.deepcopy(case.layer), io.BytesIO()
    pickle.dump(case.layer.state_dict(), stream)
    torch.testing.assert_close(case.run(other), case.run())
    return case.differentiate(y)


def differentiate_twice(case):
    y = case.run()
    first = case.differentiate(y, retain_graph=True)
    second = case.differentiate(y)
    torch.testing.assert_close(second, first, rtol=0, atol=0)
    return second


def run_another_shape_between(case):
    y = case.run()
    other = torch.cat([case.x, case.x], 0 if case.layer.batch_first else 1).detach()
    case.run(x=other).square().sum().backward()
    case.layer.zero_grad()
    return case.differentiate(y)


def run_twice_before_backward(case):
    one, two = case.run(), case.run(x=2 * case.x.detach())
    case.differentiate(two)
    return case.differentiate(one)


CHANGES = {
    change.__name__: change
    for change in (
        free_and_refill,
        free_and_refill_twice,
        replace_data,
        offload,
        change_layout,
        copy_and_pickle,
        differentiate_twice,
        run_another_shape_between,
        run_twice_before_backward,
    )
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", SUBJECTS, indirect=True)
def test_gradients_stay_the_same(case, expected, change):
    torch.testing.assert_close(CHANGES[change](case), expected)


PREPARED = [
    *(make_subject("cpu", name) for name in ("rnn_cpu", "gru_cpu", "lstm_cpu", "attn_rnn_cpu")),
    *(make_subject("cuda", name) for name in ("gru_cuda", "attn_rnn_row", "attn_rnn_cluster")),
]


@pytest.mark.parametrize("case", PREPARED, indirect=True)
def test_weights_that_were_freed_and_not_brought_back_are_refused(case):
    y, original = case.run(), [w.data for w in case.weights]
    for w in case.weights:
        w.data = w.detach().clone()
        w.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"memory of a weight of shape \(.*\) was freed after the forward pass"):
        case.differentiate(y)
    for w, value in zip(case.weights, original, strict=True):
        w.data = value


@pytest.mark.parametrize("case", PREPARED, indirect=True)
def test_weights_of_another_type_or_shape_than_in_the_forward_pass_are_refused(case, expected):
    y, first = case.run(), case.weights[0]
    original = first.data
    for other in (original.double(), original[:2].clone()):
        first.data = other
        with pytest.raises(RuntimeError, match=r"has become one of shape .* after the forward pass"):
            case.differentiate(y, retain_graph=True)
    first.data = original
    torch.testing.assert_close(case.differentiate(y)[0], expected[0])


def test_every_backend_of_the_registry_is_run_on_some_device():
    assert {kernel.backend for kernel in KERNELS} == ON_CPU | ON_GPU
    assert {kernel.name for _, kernel in KERNEL_SUBJECTS.values()} == {kernel.name for kernel in KERNELS}
