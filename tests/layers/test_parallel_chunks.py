"""A long sequence in chunks that run in parallel."""

import copy
import pickle

import pytest
import torch
from torch import nn

import seqloom
import seqloom.cells  # fills the registry
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.kernels import heuristics
from seqloom.kernels.parallel.chunks import measure_defect
from seqloom.kernels.parallel.experience import Experience, find_steps, may_divide, recall

T, STEPS = 427, 52  # the last 11 steps fill no chunk


def make_pair(make):
    """Return a layer that is divided and its copy that is not."""
    torch.manual_seed(0)
    layer = make().double()
    whole = copy.deepcopy(layer)
    layer.parallel, whole.parallel = STEPS, "never"
    return layer, whole


def run(layer, x, **given):
    """Return outputs, last states and all gradients, for gradients of both drawn from one seed."""
    x = x.clone().requires_grad_()
    torch.manual_seed(1)  # of dropout and zoneout
    y, state = layer(x, **given)
    states = state if isinstance(state, tuple) else (state,)
    torch.manual_seed(2)
    sum((t * torch.randn_like(t)).sum() for t in (y, *states)).backward()
    grads = [p.grad for p in layer.parameters()]
    return [y.detach(), *(s.detach() for s in states), x.grad, *grads]


LAYERS = {
    "gru": lambda: seqloom.GRU(5, 8),
    "lstm": lambda: seqloom.LSTM(5, 8, learn_initial_state=True),
    "stack": lambda: seqloom.GRU(5, 8, num_layers=2, bidirectional=True, residual=True),
    "by torch": lambda: seqloom.LSTM(5, 8, kernel="aten"),
    "loop": lambda: seqloom.GRU(5, 8, kernel="loop"),
    "dropout": lambda: seqloom.GRU(5, 8, 2, dropout=0.3, dropouts=seqloom.Dropouts(recurrent=0.3, zoneout=0.2)),
    "heads": lambda: seqloom.RNN(5, 8, heads=2),
}


@pytest.mark.parametrize("lengths", [None, [T, 95, STEPS, 0]])
@pytest.mark.parametrize("name", LAYERS)
def test_chunks_give_what_the_whole_sequence_gives(name, lengths):
    if name == "by torch" and lengths:
        pytest.skip("torch's LSTM takes no lengths")
    layer, whole = make_pair(LAYERS[name])
    x = torch.randn(T, 4, 5, dtype=torch.double)
    torch.testing.assert_close(run(layer, x, lengths=lengths), run(whole, x, lengths=lengths), rtol=1e-9, atol=1e-11)
    assert recall(layer.cell_at(0)).passes >= 2 and not recall(layer.cell_at(0)).failed
    assert recall(layer.cell_at(0)).back >= 2 and recall(whole.cell_at(0)) == Experience()


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(Cell.registry))
def test_chunks_of_every_cell(name):
    layer, whole = make_pair(lambda: seqloom.Recurrent(name, 5, 8))
    x, lengths = torch.randn(T, 2, 5, dtype=torch.double), [T, 95]
    torch.testing.assert_close(run(layer, x, lengths=lengths), run(whole, x, lengths=lengths), rtol=1e-9, atol=1e-11)


def test_chunks_take_states_and_resets():
    layer, whole = make_pair(lambda: seqloom.LSTM(5, 8, batch_first=True))
    x, reset = torch.randn(2, T, 5, dtype=torch.double), torch.rand(2, T) < 0.02
    state = torch.randn(1, 2, 8).double().requires_grad_(), torch.randn(1, 2, 8).double().requires_grad_()
    results = [run(one, x, state=state, reset=reset) + [s.grad.clone() for s in state] for one in (layer, whole)]
    results[1][-2:] = [both - first for both, first in zip(results[1][-2:], results[0][-2:], strict=True)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_times_between_steps_are_divided():
    layer, whole = make_pair(lambda: seqloom.Recurrent("ltc", 3, 4, kernel="loop"))
    x, spans = torch.randn(T, 2, 3, dtype=torch.double), torch.rand(T, 2, dtype=torch.double)
    torch.testing.assert_close(run(layer, x, timespans=spans), run(whole, x, timespans=spans), rtol=1e-9, atol=1e-11)
    assert recall(layer.cell_at(0)).passes >= 2 and not recall(layer.cell_at(0)).failed


def test_scan_takes_chunks():
    cell, x = seqloom.GRUCell(3, 6).double(), torch.randn(2, T, 3, dtype=torch.double)
    y, state = seqloom.scan(cell, x, parallel=STEPS)
    torch.testing.assert_close((y, state), seqloom.scan(cell, x, parallel="never"), rtol=1e-9, atol=1e-11)
    assert recall(cell).steps == STEPS


def test_second_derivatives_go_through_the_loop():
    layer, whole = make_pair(lambda: seqloom.GRU(2, 3))
    x = torch.randn(4 * STEPS, 1, 2).double().requires_grad_()
    found = []
    for one in (layer, whole):
        (first,) = torch.autograd.grad(one(x)[0].pow(2).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), [x, *one.parameters()]))
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def test_a_graph_that_is_kept_gives_the_same_gradients_again():
    layer, _ = make_pair(lambda: seqloom.GRU(2, 3))
    y, _ = layer(torch.randn(T, 1, 2, dtype=torch.double))
    first = torch.autograd.grad(y.sum(), list(layer.parameters()), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), list(layer.parameters())), first, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


class Parity(seqloom.Cell):
    """Flip the sign of the state at every negative input: it never forgets."""

    def step(self, x, state):
        (h,) = state
        h = h * torch.where(x < 0, -1.0, 1.0)
        return h, (h,)

    def initial_state(self, x):
        return (x.new_ones(x.shape[0], self.hidden_size),)


class Memory(seqloom.Cell):
    """Return the input; the gradient of the state is passed on unchanged, as by a straight-through estimator."""

    def step(self, x, state):
        (h,) = state
        h = x + (h - h.detach())
        return h, (h,)


def test_a_state_that_is_never_forgotten_runs_as_a_whole():
    layer, whole = make_pair(lambda: seqloom.Recurrent(Parity, 4, 4))
    x = torch.randn(T, 2, 4, dtype=torch.double)
    assert torch.equal(layer(x)[0], whole(x)[0])
    assert "their states differed by 2" in str(recall(layer.cell_at(0)))


def test_a_gradient_that_is_never_forgotten_is_computed_as_a_whole():
    layer, whole = make_pair(lambda: seqloom.Recurrent(Memory, 4, 4))
    x = torch.randn(T, 2, 4, dtype=torch.double)
    torch.testing.assert_close(run(layer, x), run(whole, x), rtol=1e-12, atol=1e-12)
    assert recall(layer.cell_at(0)).failed


class Clock(seqloom.Cell):
    """Forget everything but the number of steps, an integer."""

    def initial_state(self, x):
        return x.new_zeros(x.shape[0], 4), torch.zeros(x.shape[0], dtype=torch.long)

    def step(self, x, state):
        h, t = state
        h = torch.tanh(x + 0.1 * h + (t % 7).unsqueeze(-1).to(x.dtype))
        return h, (h, t + 1)


class Turn(seqloom.Cell):
    """Turn a complex number, and forget it."""

    def initial_state(self, x):
        return (torch.zeros(x.shape[0], 4, dtype=torch.complex128),)

    def step(self, x, state):
        (z,) = state
        z = x + 0.1j * z
        return z.real, (z,)


@pytest.mark.parametrize("cell", [Clock, Turn])
def test_states_that_are_not_real_numbers(cell):
    layer, whole = make_pair(lambda: seqloom.Recurrent(cell, 4, 4))
    x = torch.randn(T, 2, 4).double().requires_grad_()
    found = []
    for one in (layer, whole):
        y, state = one(x)
        found.append((y, state, *torch.autograd.grad(y.sum(), x)))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_a_slow_drift_is_not_taken_for_agreement():
    drift = torch.full((1, 50, 1), 5e-7).cumsum(1)  # every chunk adds less than the tolerance
    defect, total = measure_defect([1 + drift], [1 + drift + 5e-7])
    assert defect < 1e-6 and total == pytest.approx(50 * 5e-7, rel=0.1)


def test_nan_is_never_taken_for_agreement():
    layer, whole = make_pair(lambda: seqloom.GRU(3, 4))
    x = torch.randn(T, 2, 3, dtype=torch.double)
    x[60, 1] = torch.nan
    torch.testing.assert_close(layer(x), whole(x), rtol=1e-9, atol=1e-11, equal_nan=True)


def test_explain_says_what_happened():
    text = str(seqloom.explain(seqloom.GRU(3, 4, parallel=STEPS), torch.randn(T, 1, 3)))
    assert f"chunks of {STEPS} steps in parallel" in text and "passes" in text
    assert "chunks" not in str(seqloom.explain(seqloom.GRU(3, 4), torch.randn(T, 1, 3)))


@pytest.mark.parametrize("parallel", [0, -3, True, 2.5, "always", None])
def test_a_wrong_setting_is_refused(parallel):
    with pytest.raises((ValueError, TypeError), match="parallel must be"):
        seqloom.GRU(3, 4, parallel=parallel)
    with pytest.raises(UserError, match="parallel must be"):
        seqloom.scan(seqloom.GRUCell(3, 4), torch.randn(1, 5, 3), parallel=parallel)


def test_a_divided_layer_can_be_copied_and_pickled():
    layer = seqloom.GRU(3, 4, parallel=STEPS)
    x = torch.randn(T, 1, 3)
    y = layer(x)[0]
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x)[0], y) and f"parallel={STEPS}" in repr(other)


def test_auto_divides_long_sequences_on_a_gpu_only():
    cell, gpu = seqloom.GRUCell(8, 128), (torch.device("cuda"), torch.float32)
    assert may_divide(cell, 1, 65_536, *gpu, "auto")
    few, many = heuristics.PARALLEL_LEAST_STEPS, heuristics.PARALLEL_LEAST_STEPS_IN_16_BITS
    for dtype, least in ((torch.float32, few), (torch.bfloat16, many), (torch.float16, many)):
        assert may_divide(cell, 1, least, gpu[0], dtype, "auto")
        assert not may_divide(cell, 1, least - 1, gpu[0], dtype, "auto")
    assert not may_divide(cell, 64, 65_536, *gpu, "auto") and not may_divide(cell, 1, 65_536, *gpu, "never")
    assert not may_divide(cell, 1, 65_536, torch.device("cpu"), torch.float32, "auto")
    assert not may_divide(cell, 0, 99, *gpu, 9)
    assert not may_divide(seqloom.MinGRUCell(8, 128), 1, 65_536, *gpu, "auto")  # its kernel runs all steps at once
    assert find_steps(cell, torch.empty(1, 100, 8), 50) == 50 and not find_steps(cell, torch.empty(1, 100, 8), 51)


def test_failures_lead_to_longer_chunks_and_then_to_pauses():
    known = Experience()
    known.note_failure(256, 2, 1.0, chunks=64)
    assert known.factor == 4 and not known.rest
    known.note_failure(1024, 2, 1.0, chunks=heuristics.PARALLEL_LEAST_CHUNKS)
    assert known.rest == heuristics.PARALLEL_WAITS[0] and known.factor == 1
    for _ in range(9):
        known.note_failure(2048, 2, 1.0, chunks=8)
    assert known.rest == heuristics.PARALLEL_WAITS[1]
    known.note_success(256, 3, 1e-7)
    assert known.wait == heuristics.PARALLEL_WAITS[0] and known.passes == 3


def test_checkpoints_run_as_a_whole():
    layer, whole = make_pair(lambda: nn.ModuleList([seqloom.GRU(3, 4)])[0])
    x = torch.randn(T, 1, 3).double().requires_grad_()
    y, _ = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y, whole(x)[0]) and recall(layer.cell_at(0)) == Experience()
