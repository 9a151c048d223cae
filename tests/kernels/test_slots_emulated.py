"""Slots as columns of one block, the kernels' own text on the CPU: outputs and gradients against float64, and planted faults."""

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, cell_of, in_type, job_of
from test_cuda_emulated import everything as found_by

from seqloom import kernel
from seqloom.kernels import _cuda, any_loop, attn_rnn_cuda, attn_rnn_slots

sys.path.insert(0, str(Path(__file__).parent / "emulation"))
import emulator

pytestmark = pytest.mark.skipif(emulator.COMPILER is None, reason="no g++ to compile the kernels' text with")


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(_cuda.Code, "launch", emulator.launch)
    monkeypatch.setattr(_cuda, "multiprocessors", lambda _: 132)


def slots_job(cell, B, T, dtype, **asked):
    """A job in which every slot has a state of its own, and a noise of its own."""
    job, m, H = job_of(cell, B, T, dtype, **asked), cell.slots, cell.hidden_size
    keep = tuple((torch.rand(B, T, m, H) < 0.3).to(dtype) for _ in job.keep)
    return replace(job, state=(torch.randn(B, m, H).to(dtype),), keep=keep)


def worst(cell, job, dtype):
    """How many times as far from float64 as the loop in the same type, and of what."""
    y, last = (torch.randn(*job.x.shape[:2], cell.hidden_size).double(), torch.randn_like(job.state[0]).double())
    low = copy.deepcopy(cell).to(dtype)
    found, loop = (found_by(code.run, low, job, (y, last)) for code in (attn_rnn_slots, any_loop))
    true = found_by(any_loop.run, copy.deepcopy(low).double(), in_type(job, torch.float64), (y, last))
    ratios = {}
    for name, exact in true.items():
        least = 0.25 * torch.finfo(dtype).eps * exact.norm()  # half of a last bit, on average
        ratios[name] = float((found[name] - exact).norm() / (loop[name] - exact).norm().clamp(min=least))
    ratios = {name: math.inf if math.isnan(r) else r for name, r in ratios.items()}  # NaN is far
    name = max(ratios, key=ratios.get)
    return ratios[name], name


SHAPES = [
    (64, 4, 2, BF16, 5, 5, {"lengths": True}, {}),  # a warp has a head; two blocks, one not full
    (48, 4, 3, FP16, 3, 6, EVERYTHING, {"D": 24}),  # heads of 12 units lie across warps; two columns are spare
    (32, 1, 4, BF16, 3, 4, {"reset": True}, {"context": ("x", "h*x")}),  # two warps to a head
    (16, 8, 8, FP16, 2, 4, {"mask": True}, {"context": ("h", "h+x"), "norm": False}),  # heads of two units
    (80, 1, 5, BF16, 1, 3, EVERYTHING, {}),  # five warps to a head, three columns are spare
]


@pytest.mark.parametrize(("H", "heads", "slots", "dtype", "B", "T", "asked", "settings"), SHAPES)
def test_slots_are_at_most_twice_as_far_from_float64_as_the_loop(H, heads, slots, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, slots=slots, **settings)
    assert worst(cell, slots_job(cell, B, T, dtype, **asked), dtype)[0] < 2
