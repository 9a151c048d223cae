"""Layers do what torch's modules do with checkpoints, transforms, parametrizations, tied weights and threads."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from subjects import KERNEL_SUBJECTS, SUBJECTS, find_loss, open_case
from torch import nn
from torch.func import functional_call, jvp, vmap
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from seqloom.core.errors import UserError
from seqloom.layers.recurrent.layer import Recurrent

THREADS = 8
REFUSES_TRANSFORMS = "fused kernels support neither vmap nor forward-mode derivatives"


@pytest.fixture(scope="module")
def case(request, move_weights):
    return open_case(*request.param, move_weights)


@pytest.fixture(scope="module")
def expected(case):
    return case.differentiate(case.run())


each = pytest.mark.parametrize("case", SUBJECTS, indirect=True)


def may_refuse(case, run):
    """Return a result; None if a kernel that was asked for by name refuses transforms with its reason."""
    asked_for = isinstance(case.layer, Recurrent) and case.layer.kernel != "auto"
    if not asked_for:
        return run()
    try:
        return run()
    except UserError as error:
        if REFUSES_TRANSFORMS in str(error):
            return None
        raise


@each
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_has_the_same_gradients(case, expected, reentrant):
    y = checkpoint(lambda x: case.layer(x)[0], case.x, use_reentrant=reentrant)
    find_loss(y).backward()
    actual = [case.x.grad, *(w.grad for w in case.weights)]
    case.x.grad = None
    case.layer.zero_grad()
    # a reentrant checkpoint first runs without gradients, linear recurrences on another kernel
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@each
def test_functional_call_differentiates_the_weights_that_it_is_given(case, expected):
    weights = {name: w.detach().clone().requires_grad_() for name, w in case.layer.named_parameters()}
    y = functional_call(case.layer, weights, (case.x,))[0]
    actual = torch.autograd.grad(find_loss(y), [case.x, *weights.values()], allow_unused=True)
    torch.testing.assert_close(list(actual), expected)


@each
@pytest.mark.filterwarnings("ignore:There is a performance drop because we have not yet implemented the batching rule")
def test_vmap_runs_each_input_of_a_batch_of_inputs(case):
    several = torch.stack([case.x.detach(), 2 * case.x.detach()])
    y = may_refuse(case, lambda: vmap(lambda x: case.layer(x)[0], randomness="error")(several))
    if y is not None:
        torch.testing.assert_close(y, torch.stack([case.run(x=x) for x in several]), rtol=1e-4, atol=1e-5)


@each
def test_forward_mode_agrees_with_backward_mode(case):
    x, along = case.x.detach(), torch.randn_like(case.x)
    result = may_refuse(case, lambda: jvp(lambda x: case.layer(x)[0], (x,), (along,)))
    if result is None:
        return
    y, slope = result
    back = torch.randn_like(y)
    (dx,) = torch.autograd.grad(case.run(), case.x, back)  # of y; back . (J along) = (J^T back) . along
    size = dx.float().norm() * along.float().norm()
    tolerance = 1e-5 if x.dtype == torch.float32 else 1e-2
    assert ((slope * back).float().sum() - (dx * along).float().sum()).abs() <= tolerance * size


class Double(nn.Module):
    def forward(self, w):
        return 2 * w


@each
def test_a_parametrized_weight_gets_its_gradient(case, expected):
    layer, name = copy.deepcopy(case.layer), next(iter(dict(case.layer.named_parameters())))
    owner = layer.get_submodule(name.rpartition(".")[0])
    with torch.no_grad():
        layer.get_parameter(name).div_(2)
    parametrize.register_parametrization(owner, name.rpartition(".")[2], Double())
    own = next(iter(layer.get_submodule(f"{name.rpartition('.')[0]}.parametrizations".lstrip(".")).parameters()))
    actual = torch.autograd.grad(find_loss(layer(case.x)[0]), [case.x, own], allow_unused=True)
    wanted = [expected[0], None if expected[1] is None else 2 * expected[1]]
    torch.testing.assert_close(list(actual), wanted)


@pytest.mark.parametrize("case", [s for s in SUBJECTS if s.values[0][1] in KERNEL_SUBJECTS], indirect=True)
def test_weight_norm_has_the_gradients_of_its_equation(case):
    layer, name = copy.deepcopy(case.layer), next(n for n, w in case.layer.named_parameters() if w.dim() == 2)
    parametrizations.weight_norm(layer, name)
    y = layer(case.x)[0]
    originals = list(layer.parametrizations[name].parameters())
    actual = torch.autograd.grad(find_loss(y), originals)
    gain, direction = (w.detach().clone().requires_grad_() for w in originals)
    weight = torch._weight_norm(direction, gain, 0)  # rounds as the parametrization does
    plain = functional_call(case.layer, {name: weight}, (case.x,))[0]
    torch.testing.assert_close(y, plain)
    torch.testing.assert_close(actual, torch.autograd.grad(find_loss(plain), [gain, direction]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("case", [s for s in SUBJECTS if s.values[0][1] in KERNEL_SUBJECTS], indirect=True)
def test_tied_weights_add_their_gradients(case, expected):
    one, two = copy.deepcopy(case.layer), copy.deepcopy(case.layer)
    for name, w in one.named_parameters():
        setattr(two, name, w)
    loss = sum(find_loss(layer(case.x)[0]) for layer in (one, two))
    actual = torch.autograd.grad(loss, list(one.parameters()))
    torch.testing.assert_close(list(actual), [2 * d for d in expected[1:]])


@each
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # torch's, in a new thread
def test_eight_threads_have_the_results_of_one(case, expected):
    with torch.no_grad():
        alone = case.run()

    def run(_):
        with torch.no_grad():
            assert torch.equal(case.run(), alone)
        x = case.x.detach().requires_grad_()
        loss = find_loss(case.layer(x)[0])
        return list(torch.autograd.grad(loss, [x, *case.weights], allow_unused=True))

    with ThreadPoolExecutor(THREADS) as pool:
        for actual in pool.map(run, range(2 * THREADS)):
            torch.testing.assert_close(actual, expected)
