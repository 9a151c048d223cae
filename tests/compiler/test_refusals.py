"""What cannot be compiled runs through the loop, and `explain` says why; what changes later is never run stale."""

import copy
import io
import math
import pickle
import random
import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import seqloom
from cells import Leaky, Pointwise, Projected
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

SCALE = 0.5
CALLS = 0


class Base(Cell):
    """A cell with a product; subclasses define `new`, the state after a step."""

    def __init__(self, input_size=3, hidden_size=4):
        super().__init__(input_size, hidden_size)
        self.alpha = 0.5
        self.W, self.U = nn.Linear(input_size, hidden_size), nn.Linear(hidden_size, hidden_size)
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(hidden_size)

    def project(self, x):
        return self.W(x)

    def step(self, x, state):
        h = self.new(x, state[0])
        return h, (h,)

    def new(self, x, h):
        return self.helper(torch.tanh(x + self.U(h)), h)

    def helper(self, new, h):
        return self.alpha * new + (1 - self.alpha) * h


def cell_of(new):
    """Return a cell with this function as `new`."""
    return type(new.__name__, (Base,), {"new": new})()


def branch(self, x, h):
    return torch.tanh(x) if h.sum() > 0 else self.U(h)


def item(self, x, h):
    return torch.tanh(x) + h.max().item()


def item_of_a_weight(self, x, h):
    return torch.tanh(x + self.U(h)) * self.norm.bias[0].item()


def in_place(self, x, h):
    return h.mul_(0.5) + x


def buffer_in_place(self, x, h):
    return self.norm(torch.tanh(x + self.U(h)))


def dropout(self, x, h):
    return self.drop(torch.tanh(x + self.U(h)))


def noise(self, x, h):
    return torch.tanh(x + self.U(h) + torch.randn_like(h))


def noise_of_python(self, x, h):
    return torch.tanh(x + self.U(h)) * random.random()


def sum_over_batch(self, x, h):
    return torch.tanh(x + self.U(h) - h.sum(0))


def mean_of_x_over_batch(self, x, h):
    return torch.tanh(x - x.mean(0) + self.U(h))


def softmax_over_batch(self, x, h):
    return torch.tanh(x.softmax(0) + self.U(h))


def first_row(self, x, h):
    return torch.tanh(x[:1] + self.U(h))


def flipped_rows(self, x, h):
    return torch.tanh(x.flip(0) + self.U(h))


def rolled_rows(self, x, h):
    return torch.tanh(torch.roll(x, 1, 0) + self.U(h))


def shifted_rows(self, x, h):
    return torch.tanh(torch.cat([x[1:], x[:1]]) + self.U(h))


def mixed_rows(self, x, h):
    return torch.tanh(x.t().reshape(x.shape) + self.U(h))


def gram(self, x, h):
    return torch.tanh(x + self.U(h) @ (x.t() @ x))


def attention_over_batch(self, x, h):
    return torch.softmax(h @ h.t(), -1) @ torch.tanh(x + self.U(h))


def batch_size(self, x, h):
    return torch.tanh(x + self.U(h)) / x.shape[0]


def root_of_batch_size(self, x, h):
    return torch.tanh(x + self.U(h)) / math.sqrt(x.shape[0])


def branch_on_batch_size(self, x, h):
    return torch.tanh(x + self.U(h)) if x.shape[0] > 100 else torch.sigmoid(x + self.U(h))


def cumulated(self, x, h):
    return torch.tanh(x + self.U(h).cumsum(-1))


def sorted_state(self, x, h):
    return torch.tanh(x + self.U(h).sort(-1).values)


def sorted_x(self, x, h):
    return torch.tanh(x.sort(-1).values + self.U(h))


REMEMBERED = torch.ones(4, dtype=torch.float64)


def global_tensor(self, x, h):
    return torch.tanh(x + self.U(h)) * REMEMBERED


def counted(self, x, h):
    self.alpha += 0.1
    return self.helper(torch.tanh(x + self.U(h)), h)


def remembered(self, x, h):
    self.last = torch.tanh(x + self.U(h))
    return self.last


def counted_globally(self, x, h):
    global CALLS  # noqa: PLW0603
    CALLS += 1
    return torch.tanh(x + self.U(h)) * CALLS


def line(function, offset=1):
    return f"test_refusals.py:{function.__code__.co_firstlineno + offset}"


def results(run, cell, job, seed=0):
    """Outputs, last states and gradients; from a copy of the cell, since some change themselves."""
    cell = copy.deepcopy(cell)
    torch.manual_seed(seed)
    random.seed(seed)
    y, last = run(cell, ScanJob(job.x.clone(), tuple(s.clone() for s in job.state), job.lengths))
    gradients = torch.autograd.grad(y.square().sum() + sum(s.sum() for s in last), list(cell.parameters()),
                                    allow_unused=True)  # fmt: skip
    return [t for t in (y, *last, *gradients) if t is not None]


def why_not(cell, job):
    """Ask with another job: the kernel remembers the answer for the latest one."""
    return kernel.why_not(cell, replace(job))


def make_job(cell, B=3, T=5):
    x = torch.randn(B, T, cell.input_size, dtype=torch.float64)
    return ScanJob(x, tuple(s + 0.1 for s in cell.start(x)))


def run_auto(cell, job):
    return seqloom.scan(cell, job.x, job.state)


REFUSED = [
    (branch, "step cannot be traced: it depends on the value of a tensor (a branch or .item()) ({line})"),
    (item, "step depends on the value of a tensor by .item() ({line})"),
    (item_of_a_weight, "step depends on the value of a tensor by .item() ({line})"),
    (in_place, "step changes state_0 in place ({line})"),
    (buffer_in_place, "step changes norm.num_batches_tracked in place ({line})"),
    (dropout, "step draws random numbers ({line})"),
    (noise, "step draws random numbers ({line})"),
    (noise_of_python, "step uses a number that is random or depends on the batch size"),
    (sum_over_batch, "step sums over the batch ({line})"),
    (mean_of_x_over_batch, "step sums over the batch ({line})"),
    (softmax_over_batch, "step sums over the batch ({line})"),
    (first_row, "step combines rows of the batch by slice ({line})"),
    (flipped_rows, "step combines rows of the batch by flip ({line})"),
    (rolled_rows, "step combines rows of the batch by roll ({line})"),
    (shifted_rows, "step combines rows of the batch by slice ({line})"),
    (mixed_rows, "step combines rows of the batch by view ({line})"),
    (gram, "step combines rows of the batch by mm ({line})"),
    (attention_over_batch, "step combines rows of the batch by mm ({line})"),
    (batch_size, "step computes with the batch size ({line})"),
    (root_of_batch_size, "step uses a number that is random or depends on the batch size"),
    (branch_on_batch_size, "step does something else for another batch size"),
    (cumulated, "step calls cumsum ({line}), which the compiler does not know"),
    (sorted_state, "step calls sort ({line}), which the compiler does not know"),
    (sorted_x, "step calls sort ({line}), which the compiler does not know"),
    (
        global_tensor,
        "step cannot be traced: it reads a tensor that is neither a parameter, a buffer nor an attribute of the cell",
    ),
    (counted, "step changes the cell's attribute alpha"),
    (remembered, "step changes the cell's attribute last"),
    (counted_globally, "step changes the global CALLS"),
]


@pytest.mark.parametrize(("new", "reason"), [pytest.param(*case, id=case[0].__name__) for case in REFUSED])
def test_a_step_that_cannot_be_compiled_runs_through_the_loop_and_the_reason_is_reported(new, reason):
    global CALLS  # noqa: PLW0603
    cell = cell_of(new).double()
    job = make_job(cell)
    found = why_not(cell, job)
    assert found is not None and found.startswith(reason.format(line=line(new))), found
    expected = []
    for run in (loop.run, run_auto):
        CALLS = 0
        expected.append(results(run, cell, job))
    torch.testing.assert_close(expected[1], expected[0], rtol=0, atol=0)


def test_explain_prints_the_reason_with_the_line():
    layer = seqloom.Recurrent(type(cell_of(branch)), 3, 4)
    text = str(seqloom.explain(layer, torch.randn(5, 2, 3)))
    assert f"not any_compiled: {REFUSED[0][1].format(line=line(branch))}" in text


class Grows(Base):
    """Returns a state of another shape."""

    def step(self, x, state):
        h = torch.tanh(x + self.U(state[0][:, :4]))
        return h, (torch.cat([state[0], h], -1),)


def test_a_state_that_changes_its_shape():
    cell = Grows().double()
    job = make_job(cell, T=3)
    assert why_not(cell, job) == "step returns state 0 as (B, 8) in float64; it was (B, 4) in float64"
    torch.testing.assert_close(results(run_auto, cell, job), results(loop.run, cell, job))


def test_dropout_is_compiled_in_evaluation():
    cell = cell_of(dropout).double()
    job = make_job(cell)
    assert "random" in why_not(cell, job)
    cell.eval()
    assert why_not(cell, job) is None
    torch.testing.assert_close(results(kernel.run, cell, job), results(loop.run, cell, job))
    cell.train()
    assert "random" in why_not(cell, job)


def test_hooks_of_a_submodule_are_called():
    cell, calls = Base().double(), []
    job = make_job(cell)
    assert why_not(cell, job) is None
    handle = cell.U.register_forward_hook(lambda *_: calls.append(1))
    assert why_not(cell, job) == "U has hooks, which a compiled step would not call"
    run_auto(cell, job)
    assert len(calls) == 5
    handle.remove()
    assert why_not(cell, job) is None


def test_types_that_differ_are_named():
    cell = Base()
    cell.register_buffer("wide", torch.ones(4, dtype=torch.float64))
    x = torch.randn(2, 3, 3)
    assert why_not(cell, ScanJob(x, cell.start(x))) == "wide is torch.float64 and the input torch.float32"


def test_autocast_and_transforms_use_another_kernel():
    cell = Base()
    x = torch.randn(2, 3, 3)
    job = ScanJob(x, cell.start(x))
    with torch.autocast("cpu"):
        assert "autocast" in why_not(cell, job)

    def loss(values, x):
        return torch.func.functional_call(seqloom_layer, values, (x,))[0].square().sum()

    seqloom_layer = seqloom.Recurrent(Base, 3, 4, batch_first=True)
    weights = {n: p.detach() for n, p in seqloom_layer.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x.unsqueeze(1))
    whole = torch.func.grad(loss)(weights, x)
    eager = torch.autograd.grad(seqloom_layer(x)[0].square().sum(), list(seqloom_layer.parameters()), allow_unused=True)
    for name, g in zip(weights, eager, strict=True):
        torch.testing.assert_close(each[name].sum(0), whole[name])
        torch.testing.assert_close(whole[name], torch.zeros_like(whole[name]) if g is None else g)
    tangent = torch.func.jvp(lambda x: seqloom_layer(x)[0], (x,), (torch.ones_like(x),))[1]
    assert torch.isfinite(tangent).all()


# --- what changes after the first call ---


def check_now(cell, job):
    """The kernel runs, and gives what the loop gives at this moment."""
    assert why_not(cell, job) is None
    torch.testing.assert_close(results(kernel.run, cell, job), results(loop.run, cell, job), rtol=1e-11, atol=1e-12)


def test_weights_of_another_size_are_traced_again():
    class Wide(Base):
        def new(self, x, h):
            return torch.tanh(x + self.down(torch.relu(self.up(h))))

    cell = Wide().double()
    job = make_job(cell)
    for width in (3, 7):
        cell.up, cell.down = nn.Linear(4, width).double(), nn.Linear(width, 4).double()
        check_now(cell, job)


@pytest.mark.parametrize("where", ["cell", "submodule", "class", "list", "dict"])
def test_a_setting_counts_at_once(where):
    class Mine(Base):
        beta = 1.0

        def new(self, x, h):
            return super().new(x, h) * self.beta * self.many[0] * self.named["a"] * self.norm.eps

    cell = Mine().double()
    cell.many, cell.named = [1.0], {"a": 1.0}
    job = make_job(cell)
    check_now(cell, job)
    {
        "cell": lambda: setattr(cell, "alpha", 0.9),
        "submodule": lambda: setattr(cell.norm, "eps", 0.1),
        "class": lambda: setattr(Mine, "beta", 2.0),
        "list": lambda: cell.many.__setitem__(0, 2.0),
        "dict": lambda: cell.named.__setitem__("a", 2.0),
    }[where]()
    check_now(cell, job)


@pytest.mark.parametrize("where", ["cell", "class", "submodule", "function"])
def test_a_method_that_was_replaced_counts_at_once(where, monkeypatch):
    class Mine(Base):
        def new(self, x, h):
            return transform(super().new(x, h))

    cell = Mine().double()
    job = make_job(cell)
    check_now(cell, job)
    before = results(kernel.run, cell, job)[0]
    if where == "cell":
        cell.helper = types.MethodType(lambda _, new, h: new - h, cell)
    elif where == "class":
        monkeypatch.setattr(Base, "helper", lambda _, new, h: new - h)
    elif where == "submodule":
        monkeypatch.setattr(cell.U, "forward", lambda h: h)
    else:
        monkeypatch.setitem(globals(), "transform", lambda h: 0.4 * h)
    check_now(cell, job)
    assert not torch.allclose(results(kernel.run, cell, job)[0], before)


def transform(h):
    return SCALE * h


def test_a_global_number_counts_at_once(monkeypatch):
    class Mine(Base):
        def new(self, x, h):
            return transform(super().new(x, h))

    cell = Mine().double()
    job = make_job(cell)
    check_now(cell, job)
    monkeypatch.setitem(globals(), "SCALE", 0.7)
    check_now(cell, job)


def test_a_tensor_of_another_size_or_value_counts_at_once():
    cell = Pointwise(3, 4, dtype=torch.float64)
    job = make_job(cell)
    check_now(cell, job)
    with torch.no_grad():
        cell.u.mul_(-1)
    check_now(cell, job)
    cell.u = nn.Parameter(torch.tensor([0.3], dtype=torch.float64))
    check_now(cell, job)


# --- gradients and copies ---


def test_second_derivatives_are_right():
    cell = Leaky(2, 2, dtype=torch.float64)
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    state = (torch.randn(2, 2, dtype=torch.float64, requires_grad=True),)
    assert why_not(cell, ScanJob(x, state)) is None

    def run(x, h, weight, bias):
        from seqloom.core.weights import bind_weights

        y, last = kernel.run(bind_weights(cell, {"inner.weight": weight, "inner.bias": bias}), ScanJob(x, (h,)))
        return y, *last

    inputs = (x, *state, cell.inner.weight, cell.inner.bias)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def make_layer(kind=Projected, **settings):
    return seqloom.Recurrent(kind, 3, 4, batch_first=True, **settings)


def test_a_layer_can_be_copied_and_pickled_after_it_was_compiled():
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


def test_without_gradients_the_result_is_the_same(forget):
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
def test_only_what_needs_a_gradient_gets_one(frozen):
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


def test_random_numbers_of_the_caller_do_not_depend_on_compiling(forget):
    class Noisy(Base):
        def project(self, x):
            return F.dropout(self.W(x), 0.5)

    cell = Noisy().double()
    job = make_job(cell)
    torch.testing.assert_close(results(kernel.run, cell, job), results(loop.run, cell, job))


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
    torch.testing.assert_close(torch.compile(layer)(x)[0], expected, rtol=1e-4, atol=1e-5)
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x)[0], expected, rtol=1e-4, atol=1e-5)
