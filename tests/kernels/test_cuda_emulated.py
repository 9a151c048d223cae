"""The CUDA kernels' own text, run on the CPU: outputs and gradients against float64, and faults that must show."""

import copy
import math
from dataclasses import replace

import emulator
import pytest
import torch

from seqloom.cells import AttnRNNCell
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics
from seqloom.kernels import loop as any_loop
from seqloom.kernels.cuda.attn_rnn import block
from seqloom.kernels.cuda.attn_rnn import graph as attn_rnn_graph
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


def job_of(cell, B, T, dtype, lengths=False, mask=False, keep=False, reset=False):
    H, D = cell.hidden_size, cell.input_size
    ends = torch.randint(0, T + 1, (B,)) if lengths else None
    x = torch.randn(B, T, D).to(dtype)
    if ends is not None:
        ends[0] = T
    share = ((torch.rand(B, H) < 0.8) / 0.8).to(dtype) if mask else None
    stay = ((torch.rand(B, T, H) < 0.3).to(dtype),) if keep else ()
    anew = torch.rand(B, T) < 0.3 if reset else None
    return ScanJob(x, (torch.randn(B, H).to(dtype),), ends, anew, None, share, stay)


def everything(run, cell, job, weigh):
    cell = copy.deepcopy(cell)
    x, h = (t.detach().clone().requires_grad_() for t in (job.x, *job.state))
    y, (last,) = run(cell, replace(job, x=x, state=(h,)))
    (y.double() * weigh[0]).sum().add((last.double() * weigh[1]).sum()).backward()
    real = slice(None) if job.lengths is None else job.valid_steps()
    actual = {"y": y, "last": last, "dx": x.grad[real], "dh": h.grad}
    return {name: t.detach().double() for name, t in actual.items()} | {
        f"d{name}": p.grad.double() for name, p in cell.named_parameters()
    }


def in_type(job, dtype):
    parts = {"x": job.x.to(dtype), "state": tuple(s.to(dtype) for s in job.state)}
    parts |= {"mask": None if job.mask is None else job.mask.to(dtype), "keep": tuple(k.to(dtype) for k in job.keep)}
    return replace(job, **parts)


def worst(kernel, cell, job, dtype):
    """Return the largest error relative to that of the loop in the same type, and where it is."""
    weigh = torch.randn(*job.x.shape[:2], cell.hidden_size).double(), torch.randn(job.state[0].shape).double()
    low = copy.deepcopy(cell).to(dtype)
    actual = everything(kernel.run, low, job, weigh)
    loop = everything(any_loop.run, low, job, weigh)
    true = everything(any_loop.run, copy.deepcopy(low).double(), in_type(job, torch.float64), weigh)
    ratios = {}
    for name, exact in true.items():
        least = 0.25 * torch.finfo(dtype).eps * exact.norm()  # half of a last bit, on average
        ratios[name] = float((actual[name] - exact).norm() / (loop[name] - exact).norm().clamp(min=least))
    ratios = {name: math.inf if math.isnan(r) else r for name, r in ratios.items()}  # NaN is far
    name = max(ratios, key=ratios.get)
    return ratios[name], name


def cell_of(H, heads, D=None, seed=0, **settings):
    torch.manual_seed(seed)
    cell = AttnRNNCell(D or H, H, heads=heads, **settings)
    with torch.no_grad():
        for p in cell.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return cell


EVERYTHING = {"lengths": True, "mask": True, "keep": True, "reset": True}
BLOCKS = [
    (64, 4, BF16, 3, 5, {}, {}),
    (16, 4, FP16, 1, 1, {}, {}),
    (48, 4, BF16, 9, 6, {"lengths": True}, {}),
    (128, 4, FP16, 9, 4, {"lengths": True}, {}),
    (80, 4, FP16, 9, 7, EVERYTHING, {"D": 24}),
    (64, 2, BF16, 5, 6, {"mask": True}, {"context": ("h", "x"), "norm": False}),
    (32, 1, FP16, 5, 6, {"reset": True}, {"context": ("x", "h*x")}),
    (96, 16, BF16, 2, 4, {"keep": True}, {}),
]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings"), BLOCKS)
def test_the_block_kernels_are_at_most_twice_as_far_from_float64_as_the_loop(H, heads, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, **settings)
    assert worst(block.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


ROWS = [
    (20, 2, FP32, 3, 7, EVERYTHING, {"D": 8}),
    (24, 4, BF16, 3, 5, {}, {}),
    (16, 1, FP16, 2, 6, {"lengths": True}, {"norm": False, "context": ("h", "h*x")}),
]


@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings"), ROWS)
def test_the_row_kernels_are_at_most_twice_as_far_from_float64_as_the_loop(
    monkeypatch, H, heads, dtype, B, T, asked, settings
):
    monkeypatch.setattr(heuristics, "GRAPH_STEPS", 4)  # several chunks, the last one not full
    cell = cell_of(H, heads, **settings)
    assert worst(attn_rnn_graph, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


@pytest.mark.slow
def test_a_backward_in_several_chunks_is_the_same(monkeypatch):
    monkeypatch.setattr(heuristics, "BLOCK_CHUNK_NUMBERS", (0, 20 * 32))
    cell = cell_of(32, 4)
    assert worst(block.KERNEL, cell, job_of(cell, 9, 7, FP16, **EVERYTHING), FP16)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [block.KERNEL, attn_rnn_graph])
def test_values_past_a_length_have_no_effect(kernel):
    cell = cell_of(16, 4).to(BF16)
    job = job_of(cell, 3, 4, BF16, lengths=True)
    weigh = torch.randn(3, 4, 16).double(), torch.randn(3, 16).double()
    other = replace(job, x=job.x.masked_fill(~job.valid_steps().unsqueeze(-1), torch.nan))
    actual, again = (everything(kernel.run, cell, j, weigh) for j in (job, other))
    for name, value in actual.items():
        assert torch.equal(value, again[name]), name


@pytest.mark.slow
def test_a_failed_call_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(heuristics, "GRAPH_STEPS", 4)  # of the second chunk, two steps are past the end
    cell = cell_of(16, 2)
    job = job_of(cell, 2, 6, FP32)
    weigh = torch.randn(2, 6, 16).double(), torch.randn(2, 16).double()
    wrong = replace(job, x=job.x * torch.nan)
    actual, _, again = (everything(attn_rnn_graph.run, cell, j, weigh) for j in (job, wrong, job))
    for name, value in actual.items():
        assert torch.equal(value, again[name]), name


FAULTS = {
    "no barrier before the first product": ("    wait_block();\n    on_arrival();", "    on_arrival();"),
    "no barrier before the second product": (
        "store_buffer(memory + AT_A, v[0], v[1], l);\n    wait_block();",
        "store_buffer(memory + AT_A, v[0], v[1], l);",
    ),
    "no barrier before the third product": (
        "    wait_block();\n    u32 ob[TILES][2];",
        "    u32 ob[TILES][2];",
    ),
    "no barrier between the warps of a head": (
        "wait_threads(1 + l.warp / SPAN, 32 * SPAN);\n      s[0][0] =",
        "s[0][0] =",
    ),
    "input taken before it arrived": ("    cp_async_wait<RING - 2>();\n  }\n  put(end - 1);", "  }\n  put(end - 1);"),
    "no barrier before W_go^T dg": (
        "    wait_block();\n    float ds[4], back[4];",
        "    float ds[4], back[4];",
    ),
    "no barrier before W_o^T ds": ("    wait_block();\n    float vC[4]", "    float vC[4]"),
    "no barrier before W_q^T dq": (
        "    cp_async_wait<RING - 2>();\n    wait_block();\n    {",
        "    cp_async_wait<RING - 2>();\n    {",
    ),
    "a wrong sign": ("acc[i] = KEEP ? rest", "acc[i] = KEEP ? -rest"),
}


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    cell = cell_of(64, 2)
    asked = {"keep": True} if "sign" in fault else {}
    try:
        ratio, _ = worst(block.KERNEL, cell, job_of(cell, 8, 5, BF16, **asked), BF16)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
