"""Gated cells with heads, all heads in one launch: the CUDA text on the CPU against the loop in float64."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from seqloom.cells.lookup import find_cell
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob
from seqloom.kernels import loop
from seqloom.kernels.cuda.gated.kernels import Gated

pytestmark = pytest.mark.usefixtures("emulated")
BF16, FP32 = torch.bfloat16, torch.float32


def make_case(name, B, T, dtype, wishes):
    torch.manual_seed(0)
    cell = HeadsCell(find_cell(name), 5, 96, 3)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.1 * torch.randn_like(p))
    x = torch.randn(B, T, 5).to(dtype)
    state = tuple(torch.randn(B, 96).to(dtype) for _ in cell.start(x))
    job = ScanJob(x, state)
    if wishes:
        keep = tuple((torch.randint(3, (B, T, 96)) / 2).to(dtype) for _ in state)
        mask = (torch.rand(B, 96) < 0.8).to(dtype) / 0.8
        job = ScanJob(x, state, torch.randint(0, T + 1, (B,)), torch.rand(B, T) < 0.3, None, mask, keep)
    return cell, job


def run_everything(run, cell, job):
    cell, x = copy.deepcopy(cell), job.x.detach().clone().requires_grad_()
    state = tuple(s.detach().clone().requires_grad_() for s in job.state)
    y, last = run(cell, replace(job, x=x, state=state))
    torch.manual_seed(1)
    sum((t.double() * torch.randn(t.shape, dtype=torch.float64)).sum() for t in (y, *last)).backward()
    grads = [x.grad, *(s.grad for s in state), *(p.grad for p in cell.parameters())]
    return [t.detach().double() for t in (y, *last, *grads)]


@pytest.mark.parametrize(
    ("name", "B", "dtype", "wishes"),
    [
        ("gru", 3, BF16, True),
        ("gru", 18, FP32, False),
        ("lstm", 2, BF16, True),
        ("rnn", 2, BF16, False),
        pytest.param("ln_gru", 2, BF16, False, marks=pytest.mark.long),
    ],
)
def test_every_head_is_at_most_twice_as_far_from_float64_as_the_loop(name, B, dtype, wishes):
    cell, job = make_case(name, B, 4, dtype, wishes)
    low = copy.deepcopy(cell).to(dtype)
    actual, plain = (run_everything(run, low, job) for run in (Gated().run, loop.run))
    high = {"x": job.x.double(), "state": tuple(s.double() for s in job.state)}
    high |= {"mask": None if job.mask is None else job.mask.double(), "keep": tuple(k.double() for k in job.keep)}
    true = run_everything(loop.run, copy.deepcopy(low).double(), replace(job, **high))
    for ours, theirs, exact in zip(actual, plain, true, strict=True):
        least = 0.25 * torch.finfo(dtype).eps * exact.norm()
        ratio = float((ours - exact).norm() / (theirs - exact).norm().clamp(min=least))
        assert not math.isnan(ratio) and ratio < 2


def test_it_has_second_derivatives():
    cell, job = make_case("gru", 2, 3, FP32, False)
    results = []
    for run in (Gated().run, loop.run):
        x = job.x.clone().requires_grad_()
        (first,) = torch.autograd.grad(run(cell, replace(job, x=x))[0].sin().sum(), x, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), list(cell.parameters())))
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-4)
