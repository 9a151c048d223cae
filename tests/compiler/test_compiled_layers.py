"""Layers of compiled cells: gradients, copies, and use inside torch."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from comparison import Base, compute_results, make_job, why_not

import seqloom
from cells import Leaky, Projected
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))


def test_first_and_second_derivatives_match_finite_differences():
    cell = Leaky(2, 2, dtype=torch.float64)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = (torch.randn(2, 2, dtype=torch.float64, requires_grad=True),)
    assert why_not(cell, ScanJob(x, state)) is None

    def run(x, h, weight, bias):
        y, last = kernel.run(bind_weights(cell, {"inner.weight": weight, "inner.bias": bias}), ScanJob(x, (h,)))
        return y, *last

    inputs = (x, *state, cell.inner.weight, cell.inner.bias)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def make_layer(kind=Projected, **settings):
    return seqloom.Recurrent(kind, 3, 4, batch_first=True, **settings)


def test_a_compiled_layer_can_be_copied_pickled_and_saved():
    layer, x = make_layer(Leaky), torch.randn(2, 5, 3)
    expected = layer(x)[0]
    again = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    again.append(torch.load(io.BytesIO(buffer.getvalue()), weights_only=False))
    for other in again:
        assert set(seqloom.explain(other, x).kernels) == {"any_compiled"}
        torch.testing.assert_close(other(x)[0], expected, rtol=0, atol=0)
        with torch.no_grad():
            next(other.parameters()).add_(1.0)
    torch.testing.assert_close(layer(x)[0], expected, rtol=0, atol=0)


def test_results_without_gradients_match_those_with(forget):
    layer, x = make_layer(), torch.randn(2, 5, 3)
    with torch.inference_mode():
        y = layer(x)[0]
    assert y.is_inference()
    expected = layer(x)[0]
    with torch.no_grad():
        z = layer(x)[0]
    assert expected.requires_grad and not z.requires_grad
    torch.testing.assert_close([y.clone(), z], [expected.detach()] * 2)


@pytest.mark.parametrize("frozen", ["all weights", "one weight", "input"])
def test_only_tensors_that_require_a_gradient_get_one(frozen):
    layer, x = make_layer(), torch.randn(2, 5, 3, requires_grad=frozen != "input")
    gradients = []
    for p in list(layer.parameters())[: {"all weights": None, "one weight": 1, "input": 0}[frozen]]:
        p.requires_grad_(False)
    for name in ("compiled", "loop"):
        layer.kernel = name
        layer.zero_grad()
        x.grad = None
        layer(x)[0].square().sum().backward()
        gradients.append([t.grad for t in (x, *layer.parameters())])
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_weight_changed_before_the_backward_raises_torchs_error():
    layer, x = make_layer(Leaky), torch.randn(2, 5, 3)
    y = layer(x)[0]
    with torch.no_grad():
        next(layer.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("kind", [Leaky, Projected])
def test_outputs_may_be_changed_in_place(kind):
    layer, x = make_layer(kind, kernel="compiled"), torch.randn(2, 5, 3)
    plain = torch.autograd.grad((2 * layer(x)[0]).square().sum(), list(layer.parameters()))
    y, last = layer(x)
    y.mul_(2)
    (last[0] if isinstance(last, tuple) else last).detach().zero_()
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), list(layer.parameters())), plain)


def test_compiling_draws_no_random_numbers(forget):
    class Noisy(Base):
        def project(self, x):
            return F.dropout(self.W(x), 0.5)

    cell = Noisy().double()
    job = make_job(cell)
    torch.testing.assert_close(compute_results(kernel.run, cell, job), compute_results(loop.run, cell, job))


def test_a_profiler_keeps_running_while_a_cell_is_compiled(forget):
    import cProfile

    cell = Base().double()
    with cProfile.Profile() as profile:
        assert why_not(cell, make_job(cell)) is None
    assert profile.getstats()


@pytest.mark.slow
def test_torch_compile_and_export_take_a_layer_of_a_custom_cell():
    layer, x = make_layer(Leaky), torch.randn(2, 5, 3)
    expected = layer(x)[0]
    torch.testing.assert_close(
        torch.compile(layer, backend="aot_eager_decomp_partition")(x)[0], expected, rtol=1e-4, atol=1e-5
    )
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x)[0], expected, rtol=1e-4, atol=1e-5)


def test_calls_of_a_kind_look_for_a_kernel_once(monkeypatch):
    calls, find = [], kernel._find
    monkeypatch.setattr(kernel, "_find", lambda cell, job: calls.append(job) or find(cell, job))
    layer, x = make_layer(Leaky), torch.randn(2, 9, 3)
    for _ in range(2):
        layer(x)[0].sum().backward()
    assert len(calls) == 1
