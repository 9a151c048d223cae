"""A step that cannot be compiled runs in the loop, and `explain` says why."""

import math
import random

import pytest
import torch
from comparison import Base, compute_results, make_job, run_auto, why_not

import seqloom
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.compiled import kernel
from seqloom.kernels.cpu.machine import why_not_machine

pytestmark = pytest.mark.skipif(why_not_machine() is not None, reason=str(why_not_machine()))

CALLS = 0


def build_cell(new):
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


def one_number(self, x, h):
    return torch.tanh(x + self.U(h)) * torch.rand(())


def noise_of_units(self, x, h):
    return torch.tanh(x + self.U(h) + torch.randn(h.shape[1], dtype=h.dtype))


def noise_in_another_type(self, x, h):
    return torch.tanh(x + self.U(h) + torch.randn(h.shape, dtype=torch.float32))


def transposed_noise(self, x, h):
    return torch.tanh(x + self.U(h) + torch.randn_like(h.t()).t())


GENERATOR = torch.Generator()


def noise_of_a_generator(self, x, h):
    return torch.tanh(x + self.U(h) + torch.randn(h.shape, generator=GENERATOR, dtype=h.dtype))


def drawn_index(self, x, h):
    return torch.tanh(x + self.U(h)) * torch.multinomial(torch.softmax(h, -1), 1)


def place_of_maximum(self, x, h):
    return torch.tanh(x + self.U(h)) * (h.argmax(-1, keepdim=True) == 1)


def gathered(self, x, h):
    return torch.tanh(x + self.U(h)).gather(1, torch.zeros_like(h, dtype=torch.int64))


def used_indices(self, x, h):
    return torch.tanh(x + self.U(h)) * h.sort(-1).indices


def complex_numbers(self, x, h):
    return torch.tanh(torch.fft.fft(x + self.U(h)).real)


def wide_sort(self, x, h):
    return torch.tanh(x + self.U(h)) + torch.cat([h] * 40, 1).sort(-1).values[:, :4]


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


def rolled_numbers(self, x, h):
    return torch.tanh(torch.roll(x, 1) + self.U(h))


def selected_rows(self, x, h):
    return torch.tanh(x.select(0, 0) + self.U(h))


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
    return torch.tanh(x + self.U(h).cummax(-1).values)


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


def without_gradients(self, x, h):
    with torch.no_grad():
        gate = torch.sigmoid(self.U(h))
    return gate * x + (1 - gate) * h


def asks_for_gradients(self, x, h):
    return torch.tanh(x + self.U(h)) * (2.0 if torch.is_grad_enabled() else 1.0)


def asks_a_tensor(self, x, h):
    return torch.tanh(x + self.U(h)) * (2.0 if h.requires_grad else 1.0)


def hooks_a_tensor(self, x, h):
    h = torch.tanh(x + self.U(h))
    h.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return h


def data_of_a_weight(self, x, h):
    return torch.tanh(x + h @ self.U.weight.data)


def many_operators(self, x, h):
    for _ in range(500):
        h = h + 0.001 * (x - h)
    return h


def line(function, offset=1):
    return f"test_refusals.py:{function.__code__.co_firstlineno + offset}"


REFUSED = [
    (branch, "step depends on the value of a tensor, by a branch or .item() ({line})"),
    (item, "step depends on the value of a tensor by .item() ({line})"),
    (item_of_a_weight, "step depends on the value of a tensor by .item() ({line})"),
    (in_place, "step changes state_0 in place ({line})"),
    (buffer_in_place, "step changes norm.num_batches_tracked in place ({line})"),
    (one_number, "step draws random numbers without the batch as first dimension ({line}); draw one for each row"),
    (noise_of_units, "step draws random numbers without the batch as first dimension ({line})"),
    (noise_in_another_type, "step draws random numbers in torch.float32, but computes in torch.float64 ({line})"),
    (transposed_noise, "step draws random numbers without the batch as first dimension ({line})"),
    (drawn_index, "step draws random numbers ({line})"),
    (place_of_maximum, "step calls argmax ({line}), which the compiler does not know; compare with the maximum"),
    (gathered, "step calls gather ({line}), which the compiler does not know; index with a buffer"),
    (used_indices, "step converts numbers to torch.int64 ({line})"),
    (complex_numbers, "step uses complex numbers ({line}); keep the real and the imaginary part as two tensors"),
    (wide_sort, "step calls sort ({line}), which the compiler does not know; it does for at most 128 values"),
    (noise_of_python, "step calls Random.random ({line}), whose result may differ from call to call"),
    (sum_over_batch, "step sums over the batch ({line})"),
    (mean_of_x_over_batch, "step sums over the batch ({line})"),
    (softmax_over_batch, "step sums over the batch ({line})"),
    (first_row, "step combines rows of the batch by slice ({line})"),
    (flipped_rows, "step combines rows of the batch by flip ({line})"),
    (rolled_rows, "step combines rows of the batch by roll ({line})"),
    (rolled_numbers, "step combines rows of the batch by roll ({line})"),
    (selected_rows, "step combines rows of the batch by select ({line})"),
    (shifted_rows, "step combines rows of the batch by slice ({line})"),
    (mixed_rows, "step combines rows of the batch by view ({line})"),
    (gram, "step combines rows of the batch by mm ({line})"),
    (attention_over_batch, "step combines rows of the batch by mm ({line})"),
    (batch_size, "step computes with the batch size ({line})"),
    (root_of_batch_size, "step uses a number that is random or depends on the batch size"),
    (branch_on_batch_size, "step does something else for another batch size"),
    (cumulated, "step calls cummax ({line}), which the compiler does not know"),
    (global_tensor, "step reads a tensor that is not an attribute of the cell"),
    (counted, "step changes the cell's attribute alpha"),
    (remembered, "step changes the cell's attribute last"),
    (counted_globally, "step changes the global CALLS"),
    (many_operators, "step calls more than 1000 operators"),
    (without_gradients, "step turns gradients off (test_refusals.py:"),
    (asks_for_gradients, "step uses a number that is random or depends on the batch size or on gradients, 2.0 and"),
    (asks_a_tensor, "step reads a tensor's attribute requires_grad ({line})"),
    (hooks_a_tensor, "step cannot be traced: RuntimeError: cannot register a hook on a tensor"),
    (data_of_a_weight, "step reads a tensor's attribute data ({line})"),
]


@pytest.mark.parametrize(("new", "reason"), [pytest.param(*case, id=case[0].__name__) for case in REFUSED])
def test_a_step_that_cannot_be_compiled_runs_through_the_loop_and_the_reason_is_reported(new, reason):
    global CALLS  # noqa: PLW0603
    cell = build_cell(new).double()
    job = make_job(cell)
    answer = why_not(cell, job)
    assert answer is not None and answer.startswith(reason.format(line=line(new))), answer
    both = []
    for run in (loop.run, run_auto):
        CALLS = 0
        both.append(compute_results(run, cell, job))
    torch.testing.assert_close(both[1], both[0], rtol=0, atol=0)


def test_numbers_of_another_generator_are_refused():
    cell = build_cell(noise_of_a_generator).double()
    assert why_not(cell, make_job(cell)) == f"step draws random numbers ({line(noise_of_a_generator)})"


MOVED_UNITS = {
    "roll": lambda x: torch.roll(x, 1, -1),
    "roll of two dimensions": lambda x: torch.roll(x.unflatten(-1, (2, 2)), (1, 1), (1, 2)).flatten(1),
    "flip": lambda x: x.flip(-1),
    "cumsum": lambda x: x.cumsum(1),
    "split": lambda x: torch.cat(x.split([1, 3], -1)[::-1], -1),
    "unbind": lambda x: torch.stack(x.unbind(-1)[::-1], -1),
    "slice": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
    "select": lambda x: x.select(1, 0)[:, None],
}


@pytest.mark.parametrize("move", MOVED_UNITS.values(), ids=MOVED_UNITS)
def test_a_step_may_move_the_units_of_each_row(move):
    cell = build_cell(lambda self, x, h: torch.tanh(move(x) + self.U(h))).double()
    job = make_job(cell)
    assert why_not(cell, job) is None
    torch.testing.assert_close(compute_results(run_auto, cell, job), compute_results(loop.run, cell, job))


def test_explain_prints_the_reason_with_the_line():
    layer = seqloom.Recurrent(type(build_cell(branch)), 3, 4)
    text = str(seqloom.explain(layer, torch.randn(5, 2, 3)))
    assert f"not any_compiled: {REFUSED[0][1].format(line=line(branch))}" in text


class Grows(Base):
    """Return a state of another shape."""

    def step(self, x, state):
        h = torch.tanh(x + self.U(state[0][:, :4]))
        return h, (torch.cat([state[0], h], -1),)


def test_a_state_that_changes_its_shape_is_refused():
    cell = Grows().double()
    job = make_job(cell, T=3)
    assert why_not(cell, job) == "step returns state 0 as (B, 8) in float64; it was (B, 4) in float64"
    torch.testing.assert_close(compute_results(run_auto, cell, job), compute_results(loop.run, cell, job))


def test_dropout_follows_training_and_evaluation():
    cell = build_cell(dropout).double()
    job = make_job(cell)
    for mode in (True, False, True):
        cell.train(mode)
        assert why_not(cell, job) is None
        results = compute_results(kernel.run, cell, job)
        torch.testing.assert_close(results, compute_results(loop.run, cell, job))
        assert torch.equal(results[0], compute_results(kernel.run, cell, job, seed=1)[0]) is not mode


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


def test_a_buffer_of_another_type_is_named():
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


def test_lengths_are_not_waited_for_while_a_cuda_graph_is_recorded(monkeypatch):
    x = torch.randn(2, 3, 4)
    ragged, full = (ScanJob(x, (x[:, 0],), lengths) for lengths in (torch.tensor([3, 1]), None))
    for recording in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda recording=recording: recording)
        assert ("cannot wait for the lengths" in str(kernel._why_not_recording(ragged))) == recording
        assert kernel._why_not_recording(full) is None
