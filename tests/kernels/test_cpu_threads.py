"""The threads of the CPU engine: they divide the rows of a batch, or the columns of every product."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import seqloom
from seqloom.cells.lookup import find_cell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics, loop
from seqloom.kernels.cpu import prepared
from seqloom.kernels.cpu.engine import CELLS, ThreadSplit, split_threads
from seqloom.kernels.registry import find_kernel
from seqloom.tools.testing import check_kernel, kernel

ONE = ThreadSplit(1, False)


def compute_results(monkeypatch, split, cell, job):
    """Return outputs, last states and every gradient."""
    monkeypatch.setattr(prepared, "split_threads", lambda *_: split)
    return compute_all(find_kernel(f"{cell.name}_cpu").code.run, cell, job)


def compute_all(run, cell, job):
    y, last = run(cell, job)
    leaves = [job.x, *job.state, *cell.parameters()]
    loss = y.square().sum() + sum(s.sum() for s in last)
    return [y, *last, *torch.autograd.grad(loss, leaves, materialize_grads=True)]


def asking(name, batch, hidden, dtype=torch.float32):
    """Return a cell with a learned initial state, and a job that uses every option."""
    cell = find_cell(name)(5, hidden).to(dtype)
    cell.learn_initial_state()
    x = torch.randn(batch, 7, 5, dtype=dtype, requires_grad=True)
    state = tuple((s.detach() + 0.1).requires_grad_() for s in cell.start(x))
    lengths, reset = torch.arange(batch) * 7 // max(1, batch - 1), torch.rand(batch, 7) < 0.3
    mask = 2.0 * torch.randint(2, (batch, hidden)).to(dtype)
    keep = tuple(torch.rand(batch, 7, hidden, dtype=dtype) for _ in state)
    return cell, ScanJob(x, state, lengths=lengths, reset=reset, mask=mask, keep=keep)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "computed again"])
@pytest.mark.parametrize("name", CELLS)
def test_threads_that_divide_columns_give_bitwise_the_results_of_one(monkeypatch, name, kept):
    if not kept:
        monkeypatch.setattr(heuristics, "SAVED_BYTES", 0)
    for batch, hidden in ((1, 128), (6, 100)):  # whole panels, and not
        cell, whole = asking(name, batch, hidden)
        for job in (whole, ScanJob(whole.x, whole.state)):
            one = compute_results(monkeypatch, ONE, cell, job)
            for threads in (2, 3, 7):  # more than there are cores, or panels
                for a, b in zip(compute_results(monkeypatch, ThreadSplit(threads, True), cell, job), one, strict=True):
                    assert torch.equal(a, b)


@pytest.mark.parametrize("name", CELLS)
def test_a_first_state_that_needs_no_gradient_changes_no_other_one(name):
    layer = seqloom.Recurrent(name, 6, 20, kernel="cpu")
    for steps in (1, 3):
        x = torch.randn(steps, 5, 6, requires_grad=True)
        first = [torch.randn(1, 5, 20) for _ in range(1 + name.endswith("lstm"))]
        found = []
        for needs in (True, False):
            states = [s.clone().requires_grad_(needs) for s in first]
            y, _ = layer(x, tuple(states) if states[1:] else states[0])
            found.append(torch.autograd.grad(y.square().sum(), [x, *layer.parameters()]))
        assert all(map(torch.equal, *found))


@pytest.mark.parametrize("name", ["attn_rnn", "gru"])
def test_one_row_reads_large_weights_as_they_are(monkeypatch, name):
    cell = find_cell(name)(5, 512).double()
    x = torch.randn(1, 6, 5, dtype=torch.float64, requires_grad=True)
    job = ScanJob(x, tuple(s.requires_grad_() for s in cell.start(x)))
    expected = compute_all(loop.run, cell, job)
    for split in (ONE, ThreadSplit(2, True)):
        torch.testing.assert_close(compute_results(monkeypatch, split, cell, job), expected)


@pytest.mark.slow
def test_one_row_of_a_large_layer_is_as_accurate_as_the_loop(monkeypatch):
    monkeypatch.setattr(kernel, "SHAPES", ((1, 3, 5, 512), (1, 1, 3, 4), (1, 2, 3, 4), (2, 3, 4, 8)))
    check_kernel("attn_rnn_cpu", "attn_rnn")


@pytest.mark.parametrize(
    ("threads", "batch", "hidden", "split"),
    [
        (1, 64, 1024, ONE),
        (2, 1, 128, ONE),  # too few columns for two
        (2, 1, 256, ThreadSplit(2, True)),
        (2, 8, 256, ThreadSplit(2, False)),  # the weights fit the cache of a core
        (2, 8, 512, ThreadSplit(2, True)),
        (2, 64, 512, ThreadSplit(2, False)),  # many rows for every weight that is read
        (16, 8, 512, ThreadSplit(4, True)),
        (16, 64, 512, ThreadSplit(16, False)),
    ],
)
def test_rows_or_columns(monkeypatch, threads, batch, hidden, split):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert split_threads(batch, hidden) == split


@pytest.mark.parametrize("columns", [False, True])
def test_every_thread_flushes_denormals_if_the_caller_does(monkeypatch, columns):
    layer = seqloom.RNN(4, 64, nonlinearity="relu", bias=False, batch_first=True, kernel="cpu", dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.eye(64))
    x, h = torch.zeros(8, 3, 4, dtype=torch.float64), torch.full((1, 8, 64), 1e-310, dtype=torch.float64)
    monkeypatch.setattr(prepared, "split_threads", lambda *_: ThreadSplit(2, columns))
    try:
        for flushed in (False, True, False, True):  # the threads are there from the first on
            if not torch.set_flush_denormal(flushed):
                pytest.skip("this processor does not flush denormals")
            assert ((layer(x, h)[0] == 0) == flushed).all()
    finally:
        torch.set_flush_denormal(True)  # as every test has it


@pytest.mark.parametrize("name", CELLS)
def test_several_callers_with_several_threads_each_have_the_results_of_one(monkeypatch, name):
    cell, job = asking(name, 12, 64)
    run = find_kernel(f"{name}_cpu").code.run
    for split in (ThreadSplit(3, False), ThreadSplit(2, True)):
        monkeypatch.setattr(prepared, "split_threads", lambda *_, split=split: split)
        with torch.no_grad():
            expected = run(cell, job)
        with ThreadPoolExecutor(4) as pool:
            for actual in pool.map(lambda _, run=run: compute_all(run, cell, job), range(8)):
                torch.testing.assert_close(actual[0], expected[0])
                torch.testing.assert_close(actual[1 : 1 + len(expected[1])], list(expected[1]))
