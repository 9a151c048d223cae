"""AttnRNN with slots on its fast kernels: results of the loop in float64, and which kernel runs."""

import itertools
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import seqloom
from seqloom.cells import AttnRNNCell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.kernels import loop as any_loop
from seqloom.kernels.cpu import prepared
from seqloom.kernels.cpu.engine import ThreadSplit, split_threads
from seqloom.kernels.cuda.attn_rnn import graph as attn_rnn_graph
from seqloom.kernels.cuda.attn_rnn.graph_chunks import SlotsBackwardChunk, SlotsForwardChunk
from seqloom.kernels.cuda.attn_rnn.setting import find_setting
from seqloom.kernels.registry import find_kernel
from seqloom.layers.recurrent.streaming import why_not_stream
from seqloom.tools.testing import check_kernel, kernel

KERNELS = ("attn_rnn_cpu", "attn_rnn_manual")
SETTINGS = [
    (2, 12, {}),
    (3, 15, {"heads": 3, "context": ("x", "h*x")}),  # odd sizes: no whole vectors
    (2, 9, {"heads": 1, "context": ("h+x",), "norm": False}),
    (5, 8, {"heads": 2, "context": ("h",)}),
]


def job_of(cell, B, T, everything):
    x = torch.randn(B, T, cell.input_size, dtype=torch.float64, requires_grad=True)
    state = tuple((s.detach() + 0.3 * torch.randn_like(s)).requires_grad_() for s in cell.start(x))
    if not everything:
        return ScanJob(x, state)
    lengths, reset = torch.arange(B) * T // max(1, B - 1), torch.rand(B, T) < 0.3
    mask = 2.0 * torch.randint(2, (B, cell.hidden_size)).double()
    keep = tuple(torch.rand(B, T, *s.shape[1:], dtype=torch.float64) for s in state)
    return ScanJob(x, state, lengths, reset, mask=mask, keep=keep)


def compute_results(run, cell, job, twice=False):
    """Return outputs, last states and every gradient; with `twice`, also their gradients."""
    y, last = run(cell, job)
    leaves = [job.x, *job.state, *cell.parameters()]
    weigh = torch.linspace(-1, 1, last[0].numel(), dtype=torch.float64).view_as(last[0])
    loss = y.square().sum() + (weigh * last[0]).sum()
    first = torch.autograd.grad(loss, leaves, create_graph=twice, materialize_grads=True)
    if not twice:
        return [y, *last, *first]
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves, materialize_grads=True)
    return [y, *last, *first, *second]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("slots", "hidden", "settings"), SETTINGS)
def test_a_kernel_with_slots_matches_the_loop(monkeypatch, name, slots, hidden, settings):
    monkeypatch.setattr(heuristics, "PAIRWISE_NUMBERS", 200)  # of the shapes below some have more, some have not
    for size, (B, T), everything in itertools.product((5, hidden), ((1, 1), (1, 6), (3, 5)), (False, True)):
        cell = AttnRNNCell(size, hidden, slots=slots, **settings).double()
        if everything:
            cell.learn_initial_state()
        job = job_of(cell, B, T, everything)
        assert find_kernel(name).code.why_not(cell, job) is None
        for ours, loop in zip(
            compute_results(find_kernel(name).code.run, cell, job),
            compute_results(any_loop.run, cell, job),
            strict=True,
        ):
            torch.testing.assert_close(ours, loop, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", KERNELS)
def test_second_derivatives_with_slots_come_from_the_loop(name):
    cell = AttnRNNCell(5, 8, slots=2).double()
    cell.learn_initial_state()
    job = job_of(cell, 3, 4, everything=True)
    torch.testing.assert_close(
        compute_results(find_kernel(name).code.run, cell, job, True), compute_results(any_loop.run, cell, job, True)
    )


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
def test_threads_keep_the_slots_of_a_sequence_together(monkeypatch, kept):
    monkeypatch.setattr(heuristics, "SAVED_BYTES", 2**29 if kept else 0)
    cell = AttnRNNCell(5, 100, slots=3).double()
    cell.learn_initial_state()
    for job in (job_of(cell, 5, 4, True), job_of(cell, 5, 4, False)):
        results = []
        for split in (
            ThreadSplit(1, False),
            ThreadSplit(2, True),
            ThreadSplit(7, True),
            ThreadSplit(2, False),
            ThreadSplit(4, False),
        ):
            monkeypatch.setattr(prepared, "split_threads", lambda *_, split=split: split)
            results.append(compute_results(find_kernel("attn_rnn_cpu").code.run, cell, job))
        for columns in results[1:3]:
            assert all(map(torch.equal, columns, results[0]))
        for rows in results[3:]:  # the weights' gradients are added up in another order
            torch.testing.assert_close(rows, results[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(results[0], compute_results(any_loop.run, cell, job))


def test_one_sequence_of_many_slots_is_not_divided(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    assert split_threads(16, 64, slots=16) == ThreadSplit(1, False)
    assert split_threads(32, 64, slots=16) == ThreadSplit(2, False)
    assert split_threads(32, 64, slots=2) == ThreadSplit(4, False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("slots", [2, 5])
def test_a_layer_with_slots_runs_and_steps_on_the_engine(slots, dtype):
    for size, rows, more in (
        (5, (2,), {}),
        (20, (), {"context": ("x", "h*x"), "norm": False}),
        (5, (4,), {"heads": 2}),
    ):
        layer = seqloom.AttnRNN(size, 20, num_layers=2, slots=slots, dtype=dtype, **more)
        x = torch.randn(6, *rows, size, dtype=dtype)
        assert set(seqloom.explain(layer, x).kernels) == {"attn_rnn_cpu"} and why_not_stream(layer) is None
        state, ys = None, []
        with torch.no_grad():
            for now in x:
                y, state = layer.step(now, state)
                ys.append(y)
        assert layer._stack.by_shape  # it did not go through forward
        layer.kernel = "loop"
        torch.testing.assert_close((torch.stack(ys), state), layer(x), rtol=1e-4, atol=1e-5)


def test_the_step_leaves_large_layers_with_slots_to_forward():
    layer = seqloom.AttnRNN(4, 520, heads=4, slots=4)
    assert "too slow above 512 units of 4 slots" in str(why_not_stream(layer))


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_chunks_of_a_graph_are_as_accurate_as_the_loop(monkeypatch, dtype):
    monkeypatch.setattr(heuristics, "GRAPH_STEPS", 4)  # several chunks, the last one not full
    monkeypatch.setattr(kernel, "SHAPES", ((2, 1, 3, 4), (2, 4, 5, 12), (2, 9, 8, 8), (3, 6, 7, 20)))
    graph = SimpleNamespace(why_not=lambda *_: None, run=attn_rnn_graph.run)  # what a GPU records, run as it is
    check_kernel(graph, "attn_rnn", dtype, slots=2)


def test_autocast_does_not_apply_inside_a_chunk():
    cell, x = AttnRNNCell(8, 8, slots=2), torch.randn(3, 6, 8)
    expected = attn_rnn_graph.run(cell, ScanJob(x, cell.start(x)))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attn_rnn_graph.run(cell, ScanJob(x, cell.start(x)))[0], expected[0])


def test_a_failed_call_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(heuristics, "GRAPH_STEPS", 4)
    cell = AttnRNNCell(5, 8, slots=2)
    x, h = torch.randn(3, 6, 5), torch.randn(3, 2, 8)
    for job in (ScanJob(x, (h,)), ScanJob(x, (h,), torch.tensor([6, 0, 3]))):
        results = []
        for given in (x, x * torch.nan, x):
            y, _ = attn_rnn_graph.run(cell, replace(job, x=given))
            results.append([y, *torch.autograd.grad(y.square().sum(), list(cell.parameters()))])
        assert all(map(torch.equal, results[2], results[0])) and not torch.equal(results[1][0], results[0][0])


@pytest.mark.parametrize("kind", [SlotsForwardChunk, SlotsBackwardChunk])
def test_a_chunk_reads_no_value_from_the_device(monkeypatch, kind):
    """A graph records launches only. Meta tensors have no values, so reading one would fail."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    for many, slots, wished in itertools.product((0, heuristics.PAIRWISE_NUMBERS), (2, 6), (True, False)):
        monkeypatch.setattr(heuristics, "PAIRWISE_NUMBERS", many)
        how = find_setting(16, 4, torch.float32, ("h", "x", "h*x"), wished, wished, wished, wished, slots=slots)
        with torch.no_grad():
            kind(how, 3, 4, torch.device("meta")).launch()
