"""A kernel is a faster loop, never another result."""

import copy

import pytest
import torch

import seqloom
import seqloom.cells
from seqloom import kernel
from seqloom.cell import Cell
from seqloom.job import Job
from seqloom.kernels import any_loop, any_scan

NAMED = [name for name in kernel.known() if not name.startswith("any_")]


def parts(cell, x, lengths, run):
    """Outputs, last state and every gradient."""
    x = x.detach().requires_grad_()
    state = tuple(s.detach().clone().requires_grad_() for s in cell.start(x))
    y, last = run(cell, Job(x, state, lengths))
    weight = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    loss = (y * weight).sum() + sum(s.sum() for s in last)
    return [y, *last, *torch.autograd.grad(loss, [x, *state, *cell.parameters()])]


@pytest.mark.parametrize("lengths", [None, [9, 0, 4, 9]])
@pytest.mark.parametrize("steps", [1, 9, 33])
@pytest.mark.parametrize("name", NAMED)
def test_a_kernel_is_at_most_twice_as_far_from_float64_as_the_loop(name, steps, lengths):
    cell = Cell.registry[name.rpartition("_")[0]](5, 12)
    x = torch.randn(4, steps, 5)
    lengths = None if lengths is None else torch.tensor(lengths).clamp(max=steps)
    exact = parts(copy.deepcopy(cell).double(), x.double(), lengths, any_loop.run)
    loop = parts(cell, x, lengths, any_loop.run)
    fast = parts(cell, x, lengths, kernel.load(name).run)
    for true, slow, quick in zip(exact, loop, fast, strict=True):
        scale = true.abs().max() + 1e-30
        slack = max(4, steps) * torch.finfo(torch.float32).eps  # torch adds a bias gradient up step by step
        assert (quick.double() - true).abs().max() / scale <= 2 * (slow.double() - true).abs().max() / scale + slack


@pytest.mark.slow
@pytest.mark.parametrize("name", ["attn_rnn", "lstm"])
def test_the_compiled_scan_of_any_cell_is_the_loop(name):
    cell = Cell.registry[name](5, 8)
    x = torch.randn(3, 7, 5)
    for lengths in (None, torch.tensor([7, 0, 3])):
        for ours, loop in zip(
            parts(cell, x, lengths, any_scan.run), parts(cell, x, lengths, any_loop.run), strict=True
        ):
            torch.testing.assert_close(ours, loop, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for p in cell.parameters():
            p.mul_(0.5)
    torch.testing.assert_close(
        any_scan.run(cell, Job(x, cell.start(x)))[0], any_loop.run(cell, Job(x, cell.start(x)))[0]
    )


def test_a_kernel_asked_for_by_name_runs_or_raises_with_the_reason():
    layer = seqloom.GRU(3, 4, kernel="aten", reset_after=False)
    with pytest.raises(ValueError, match=r"gru_aten.*reset_after"):
        layer(torch.randn(2, 1, 3))


def test_a_subclass_of_a_cell_does_not_run_on_its_parents_kernel():
    class Other(seqloom.GRUCell):
        def step(self, x, state):
            return state[0] + 1, (state[0] + 1,)

    layer = seqloom.Recurrent(Other, 3, 4)
    y, _ = layer(torch.randn(5, 1, 3))
    assert torch.equal(y[:, 0, 0], torch.arange(1.0, 6.0))
    assert set(seqloom.explain(layer, torch.randn(5, 1, 3)).kernels) == {"any_loop"}


def test_every_kernel_belongs_to_a_registered_cell_and_a_known_backend():
    for name in kernel.known():
        cell, _, backend = name.rpartition("_")
        assert cell in {*Cell.registry, "any"} and backend in kernel.BACKENDS
