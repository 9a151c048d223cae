"""A user's cell is checked against the loop when it is first compiled for a kind of call."""

import warnings

import pytest
import torch
from comparison import Base
from torch import nn
from torch.utils.checkpoint import checkpoint

import seqloom
from cells import Difference
from seqloom.core.job import ScanJob
from seqloom.kernels.compiled import kernel, validation
from seqloom.kernels.compiled.run import Compiled
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))


@pytest.fixture(autouse=True)
def _forget(forget, tmp_path, monkeypatch):
    """Prepare every plan anew, so that each test checks it."""
    monkeypatch.setenv("SEQLOOM_CACHE", str(tmp_path))
    kernel._prepare.cache_clear()
    yield
    kernel._prepare.cache_clear()


@pytest.fixture
def kinds(monkeypatch):
    """The kinds of call that were checked."""
    seen, check = [], validation.check
    monkeypatch.setattr(
        validation, "check", lambda cell, job, run, kind: seen.append(kind) or check(cell, job, run, kind)
    )
    return seen


def make_layer(kind=Difference, **settings):
    torch.manual_seed(0)
    return seqloom.Recurrent(kind, 3, 4, batch_first=True, **settings)


def break_outputs(monkeypatch):
    """Plant a fault: the last state of compiled cells is off by a hundredth."""
    run_forward = Compiled.run_forward

    def wrong(*args):
        y, last, states, known = run_forward(*args)
        return y, [s + 0.01 for s in last], states, known

    monkeypatch.setattr(Compiled, "run_forward", wrong)


def test_a_cell_that_matches_the_loop_is_checked_once_for_each_kind_of_call(kinds):
    layer, x = make_layer(), torch.randn(2, 6, 3)
    for _ in range(2):
        layer(x)
        layer(x, lengths=[6, 2])
        layer(x, reset=torch.zeros(2, 6, dtype=torch.bool))
        with torch.no_grad():
            layer(x)
    assert [(k.train, k.lengths, k.reset) for k in kinds] == [
        (True, False, False), (True, True, False), (True, False, True), (False, False, False),
    ]  # fmt: skip


def test_a_cell_of_the_package_is_not_checked(kinds):
    seqloom.Recurrent("peephole_lstm", 3, 4, batch_first=True)(torch.randn(2, 6, 3))
    assert not kinds


def test_a_cell_that_differs_runs_in_the_loop_with_one_warning(monkeypatch):
    break_outputs(monkeypatch)
    layer, x = make_layer(), torch.randn(2, 6, 3)
    with pytest.warns(
        UserWarning, match="the compiled form of Difference is not used, because its last state 0 differs"
    ):
        _, h = layer(x)
    layer.kernel = "loop"
    assert torch.equal(h, layer(x)[1])
    layer.kernel = "auto"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)  # says nothing more
        assert "its last state 0 differs from the loop's" in str(seqloom.explain(layer, x))


def test_a_cell_that_fails_runs_in_the_loop_with_a_warning(monkeypatch):
    def fail(*_):
        raise KeyError("node 7")

    monkeypatch.setattr("seqloom.kernels.compiled.run._run_backward", fail)
    layer, x = make_layer(), torch.randn(2, 6, 3)
    with pytest.warns(UserWarning, match="because it fails: KeyError: 'node 7'"):
        y, _ = layer(x)
    y.sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_a_wrong_gradient_is_found_though_outputs_are_right(monkeypatch):
    backward = __import__("seqloom.kernels.compiled.run", fromlist=["_run_backward"])._run_backward

    def wrong(*args):
        found = backward(*args)
        return found._replace(weights=[g if g is None else g * 1.01 for g in found.weights])

    monkeypatch.setattr("seqloom.kernels.compiled.run._run_backward", wrong)
    layer, x = make_layer(), torch.randn(2, 6, 3)
    with torch.no_grad():
        layer(x)  # without gradients it is right, and used
    with pytest.warns(UserWarning, match="its gradient of"):
        layer(x)


def test_the_check_changes_no_random_numbers_and_no_gradients():
    layer, x = make_layer(), torch.randn(2, 6, 3)
    torch.manual_seed(3)
    layer(x)
    drawn = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(4))
    assert all(p.grad is None for p in layer.parameters())


def test_a_projection_with_dropout_is_checked_without_its_randomness(kinds):
    class Noisy(Base):
        def project(self, x):
            return self.drop(self.W(x))

    layer = make_layer(Noisy)
    layer(torch.randn(2, 6, 3))
    assert len(kinds) == 1
    assert seqloom.explain(layer, torch.randn(2, 6, 3)).kernels == ("any_compiled",)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_first_call_inside_a_checkpoint_is_checked(reentrant, kinds):
    layer, x = make_layer(), torch.randn(2, 6, 3, requires_grad=True)
    checkpoint(lambda x: layer(x)[0], x, use_reentrant=reentrant).sum().backward()
    assert kinds
    ours, x.grad = x.grad, None
    layer.kernel = "loop"
    layer(x)[0].sum().backward()
    torch.testing.assert_close(ours, x.grad)


def test_a_first_call_in_inference_mode_is_checked(kinds):
    layer = make_layer()
    with torch.inference_mode():
        layer(torch.randn(2, 6, 3))
    assert [k.train for k in kinds] == [False]


def test_a_value_next_to_a_threshold_is_no_difference():
    class Jump(Base):
        def new(self, x, h):
            a = torch.sigmoid(h) * h + (1 - torch.sigmoid(h)) * h  # h, up to rounding
            return torch.tanh(x + self.U(torch.where(a > h, h, -h)))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_layer(Jump)(torch.randn(2, 6, 3))


def test_weights_of_zero_do_not_hide_a_fault(monkeypatch):
    break_outputs(monkeypatch)

    class Quiet(Base):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            nn.init.zeros_(self.U.weight)

    with pytest.warns(UserWarning, match="the compiled form of"):
        make_layer(Quiet)(torch.randn(2, 6, 3))


def test_another_process_does_not_check_a_stored_plan_again(kinds, forget):
    layer, x = make_layer(), torch.randn(2, 6, 3)
    layer(x)
    assert len(kinds) == 1
    forget()  # as in a new process: the plan comes from disk
    kernel._prepare.cache_clear()
    make_layer()(x)
    assert len(kinds) == 1
    with torch.no_grad():
        make_layer()(x)
    assert len(kinds) == 2


def test_other_code_is_checked_again(kinds, forget, monkeypatch):
    layer, x = make_layer(), torch.randn(2, 6, 3)
    layer(x)
    forget()
    kernel._prepare.cache_clear()
    monkeypatch.setattr(validation, "_digest_code", lambda _: "another version")
    make_layer()(x)
    assert len(kinds) == 2


def test_a_cell_that_differs_is_checked_again_by_another_process(kinds, forget, monkeypatch):
    break_outputs(monkeypatch)
    for stored in (False, True):
        forget()
        kernel._prepare.cache_clear()
        with warnings.catch_warnings(record=True) as messages:
            warnings.simplefilter("always")
            make_layer()(torch.randn(2, 6, 3))
        texts = [str(m.message) for m in messages]
        assert ["does not fit" in text for text in texts] == [True, False][
            not stored :
        ]  # a stored plan is traced again
        assert "the compiled form of Difference is not used" in texts[-1]
    assert len(kinds) == 3


def test_a_stored_plan_of_a_cell_of_the_package_is_checked_once(kinds, forget):
    for _ in range(3):
        forget()
        kernel._prepare.cache_clear()
        seqloom.Recurrent("peephole_lstm", 3, 4, batch_first=True)(torch.randn(2, 6, 3))
    assert len(kinds) == 1


def test_a_prepared_call_of_a_cell_that_can_no_longer_be_compiled_runs_in_the_loop():
    layer, x = make_layer(), torch.randn(2, 6, 3)
    cell = layer.cell_at(0)
    job = ScanJob(x, cell.start(x))
    expected = kernel.run(cell, job)[0]
    cell.inner.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(kernel.run(cell, job)[0], expected)
