"""Slots side by side in a block, the kernels' own text on the CPU: all against float64, and planted faults."""

from dataclasses import replace
from types import SimpleNamespace

import emulator
import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, cell_of, job_of, worst
from test_cuda_emulated import everything as found_by

from seqloom.kernels import dispatch, heuristics
from seqloom.kernels.cuda.attn_rnn import slots as attn_rnn_slots
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")


def slots_job(cell, B, T, dtype, **asked):
    """Return a job in which every slot has its own state and noise."""
    job, m, H = job_of(cell, B, T, dtype, **asked), cell.slots, cell.hidden_size
    keep = tuple((torch.rand(B, T, m, H) < 0.3).to(dtype) for _ in job.keep)
    return replace(job, state=(torch.randn(B, m, H).to(dtype),), keep=keep)


SHAPES = [
    (64, 4, 2, BF16, 5, 5, {"lengths": True}, {}),  # a warp has a head; two blocks, one not full
    (48, 4, 3, FP16, 3, 6, EVERYTHING, {"D": 24}),  # heads of 12 units lie across warps; two columns are spare
    (32, 1, 4, BF16, 3, 4, {"reset": True}, {"context": ("x", "h*x")}),  # two warps to a head
    (16, 8, 8, FP16, 2, 4, {"mask": True}, {"context": ("h", "h+x"), "norm": False}),  # heads of two units
    (80, 1, 5, BF16, 1, 3, EVERYTHING, {}),  # five warps to a head, three columns are spare
]


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "slots", "dtype", "B", "T", "asked", "settings"), SHAPES)
def test_slots_are_at_most_twice_as_far_from_float64_as_the_loop(H, heads, slots, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, slots=slots, **settings)
    assert worst(attn_rnn_slots.KERNEL, cell, slots_job(cell, B, T, dtype, **asked), dtype)[0] < 2


@pytest.mark.slow
def test_a_backward_in_several_chunks_is_the_same(monkeypatch):
    monkeypatch.setattr(heuristics, "BLOCK_CHUNK_NUMBERS", (0, 20 * 48))
    H, heads, slots, dtype, B, T, asked, settings = SHAPES[1]
    cell = cell_of(H, heads, slots=slots, **settings)
    job = replace(slots_job(cell, B, T, dtype, **asked), lengths=torch.tensor([6, 1, 0]))
    assert worst(attn_rnn_slots.KERNEL, cell, job, dtype)[0] < 2


@pytest.mark.slow
def test_a_sequence_of_nan_does_not_affect_its_neighbour_in_the_block():
    H, heads, slots, dtype, _, T, asked, settings = SHAPES[2]
    cell = cell_of(H, heads, slots=slots, **settings).to(dtype)
    job = replace(slots_job(cell, 2, T, dtype, **asked), lengths=torch.tensor([T, 2]))
    weigh = torch.randn(2, T, H).double(), torch.randn(2, slots, H).double()
    lost = job.x.clone()
    lost[0], lost[1, 2:] = torch.nan, torch.nan
    actual, again = (found_by(attn_rnn_slots.KERNEL.run, cell, replace(job, x=x), weigh) for x in (job.x, lost))
    assert again["y"][0].isnan().all() and again["dh"][0].isnan().any()
    for name in ("y", "last", "dh"):
        assert torch.equal(actual[name][1], again[name][1]), name
    assert torch.equal(actual["dx"][T:], again["dx"][T:])


def test_states_are_saved_only_if_gradients_may_be_needed(monkeypatch):
    told = []
    monkeypatch.setattr(
        launch.CudaCode, "launch", lambda *given: (told.append(bool(given[1].states)), emulator.launch(*given))
    )
    H, heads, slots, dtype, B, T, asked, settings = SHAPES[0]
    cell = cell_of(H, heads, slots=slots, **settings).to(dtype)
    job = slots_job(cell, B, T, dtype, **asked)
    y, _ = attn_rnn_slots.KERNEL.run(cell, job)
    with torch.no_grad():
        assert torch.equal(attn_rnn_slots.KERNEL.run(cell, job)[0], y)
    assert told == [True, False]


def test_unsupported_jobs_are_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(launch, "why_not", lambda _: None)

    def why_not(cell):
        job = slots_job(cell, 1, 1, BF16)
        x = SimpleNamespace(is_cuda=True, dtype=BF16, shape=job.x.shape, device="cuda")
        return attn_rnn_slots.KERNEL.why_not(cell, replace(job, x=x))

    sizes = {(64, 1): "2 to 8 slots, not 1", (64, 9): "2 to 8 slots, not 9", (144, 2): "not 144", (24, 2): "not 24"}
    for (H, slots), reason in sizes.items():
        cell = cell_of(H, 4, slots=slots)
        assert reason in why_not(cell)
    assert why_not(cell_of(128, 4, slots=8)) is None


def test_auto_takes_it(monkeypatch):
    monkeypatch.setattr(attn_rnn_slots.KERNEL, "why_not", lambda *_: None)
    cell = cell_of(64, 4, slots=2)
    assert dispatch.choose(cell, slots_job(cell, 1, 1, BF16)).name == "attn_rnn_slots"


FAULTS = {
    "no barrier between the warps of a head": ("wait_head(l);\n      get_scores(s, ", "get_scores(s, "),
    "the slots of another sequence count": (" == l.row / SLOTS; }", " >= 0; }"),
    "a gradient of scores is not transposed": ("transpose(pack<TYPE>(z[0], z[1])));", "pack<TYPE>(z[0], z[1]));"),
    "no barrier before W_o^T ds": ("    wait_block();\n    float vC[4]", "    float vC[4]"),
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    H, heads, slots, dtype, B, T, asked, settings = SHAPES[2]
    cell = cell_of(H, heads, slots=slots, **settings)
    try:
        ratio, _ = worst(attn_rnn_slots.KERNEL, cell, slots_job(cell, B, T, dtype, **asked), dtype)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
