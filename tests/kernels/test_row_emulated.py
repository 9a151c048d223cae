"""One block per row, emulated on the CPU: outputs and gradients against float64, and planted faults."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import emulator
import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP32, cell_of, in_type, job_of, worst

from seqloom.cells import AttnRNNCell
from seqloom.kernels import dispatch, heuristics
from seqloom.kernels import loop as any_loop
from seqloom.kernels.cuda.attn_rnn import cluster as attn_rnn_cluster
from seqloom.kernels.cuda.attn_rnn import row as attn_rnn_row
from seqloom.kernels.cuda.attn_rnn import scan
from seqloom.kernels.cuda.attn_rnn.setting import find_setting
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime import launch
from seqloom.tools.testing import kernel

pytestmark = pytest.mark.usefixtures("emulated")


def test_every_size_fits_a_multiprocessor():
    for H in range(16, heuristics.ROW_LARGEST_HIDDEN + 1, 16):
        for noisy in (False, True):
            how = find_setting(H, 16, FP32, ("h", "x"), True, noisy, noisy, noisy)
            for name in ("forward", "reverse"):
                for paired in (False, True):
                    code = attn_rnn_row.find_code(how, name, paired)
                    held = (3 if paired else 4) * 4 * (4 * -(-H // 32) - dict(code.macros)["QUADS_IN_SHARED"])
                    assert code.shared <= heuristics.SHARED_BYTES and held <= 192 and code.threads <= 256


def test_a_gpu_with_little_shared_memory_is_refused_with_the_size_needed(monkeypatch):
    gpu = SimpleNamespace(name="a small one", shared_memory_per_block_optin=64 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    told = [
        attn_rnn_row._why_no_room(find_setting(H, 4, FP32, ("h",), True, *[False] * 3), torch.device("cpu"))
        for H in (96, 128)
    ]
    assert told[0] is None and "101 KB" in told[1] and "a small one has 64" in told[1]


def test_auto_takes_it_for_few_rows(monkeypatch):
    for one in (attn_rnn_row.KERNEL, attn_rnn_cluster.KERNEL):
        monkeypatch.setattr(one, "why_not", lambda *_: None)
    for H, B, taken in ((64, 1_024, "row"), (64, 1_025, "cluster"), (80, 512, "row"), (80, 513, "cluster")):
        cell = cell_of(H, 4)
        choice = dispatch.choose(cell, job_of(cell, B, 1, FP32))
        assert choice.name == f"attn_rnn_{taken}"
        if taken == "cluster":
            assert f"faster in float32 with {H} units, {B} rows" in dict(choice.rejected)["attn_rnn_row"]
            assert dispatch.choose(cell, job_of(cell, B, 1, FP32), "row").name == "attn_rnn_row"


SHAPES = [
    (64, 4, 3, 5, EVERYTHING, {"D": 24}, FP32),  # a warp has a head
    (128, 4, 2, 4, EVERYTHING, {}, FP32),  # two blocks to a row, two warps to a head
    (112, 4, 2, 4, {"lengths": True}, {}, FP32),  # two blocks to a row, lanes without a last quad
    (48, 4, 2, 6, EVERYTHING, {}, FP32),  # lanes without a last quad, heads of 12 units
    (48, 4, 2, 6, EVERYTHING, {}, BF16),
    (64, 4, 2, 5, EVERYTHING, {}, torch.float16),
    pytest.param(128, 4, 2, 4, {"lengths": True}, {}, BF16, marks=pytest.mark.long),
]


@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "B", "T", "asked", "settings", "dtype"), SHAPES)
def test_a_row_is_at_most_twice_as_far_from_float64_as_the_loop(H, heads, B, T, asked, settings, dtype):
    cell = cell_of(H, heads, **settings)
    assert worst(attn_rnn_row.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FP32, pytest.param(BF16, marks=pytest.mark.long)])
def test_many_rows_have_one_block_each_and_weights_in_shared_memory(monkeypatch, dtype):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 3)
    cell = cell_of(128, 4)
    job = job_of(cell, 2, 4, dtype, lengths=True)
    assert attn_rnn_row.choose_code(scan.read_padded(cell, job), "forward", 2, job.x.device).blocks == 1
    assert attn_rnn_row.choose_code(scan.read_padded(cell, job), "forward", 1, job.x.device).blocks == 2
    assert worst(attn_rnn_row.KERNEL, cell, job, dtype)[0] < 2


@pytest.mark.slow
def test_chunks_of_time_in_which_a_row_has_no_step_and_what_lies_past_a_length(monkeypatch):
    monkeypatch.setattr(heuristics, "CHUNK_BYTES", 1)
    cell = cell_of(16, 8, norm=False, context=("h", "x"))  # heads of 2 units
    job = replace(job_of(cell, 2, 11, FP32), lengths=torch.tensor([2, 9]))
    job = replace(job, x=job.x.masked_fill(~job.valid_steps().unsqueeze(-1), 1e6))
    assert worst(attn_rnn_row.KERNEL, cell, job, FP32)[0] < 2


@pytest.mark.slow
@pytest.mark.long
def test_large_products_of_the_backward_are_made_of_halves(monkeypatch):
    monkeypatch.setattr(heuristics, "CHUNK_BYTES", 1)
    monkeypatch.setattr(exact, "is_faster", lambda like, *_: like.dtype == FP32)
    calls = []
    for name in ("multiply", "multiply_transposed"):
        own = getattr(exact, name)
        monkeypatch.setattr(exact, name, lambda *given, own=own, name=name: calls.append(name) or own(*given))
    cell = cell_of(16, 4)
    assert worst(attn_rnn_row.KERNEL, cell, job_of(cell, 8, 2, FP32, lengths=True), FP32)[0] < 2
    assert calls.count("multiply") == 3 * 2 and calls.count("multiply_transposed") == 4 * 2  # two chunks


def forward(cell, job):
    """Return the error of the outputs relative to that of the loop."""
    with torch.no_grad():
        actual, loop = (code.run(cell, job)[0] for code in (attn_rnn_row.KERNEL, any_loop))
        true = any_loop.run(copy.deepcopy(cell).double(), in_type(job, torch.float64))[0]
    ratio = float((actual - true).norm() / (loop - true).norm())
    return math.inf if math.isnan(ratio) else ratio


def test_a_state_that_lies_far_from_zero_keeps_its_digits():
    cell = cell_of(48, 3)
    job = job_of(cell, 2, 4, FP32)
    assert forward(cell, replace(job, state=(job.state[0] + 30,))) < 2


@pytest.mark.slow
def test_errors_of_gelu_do_not_accumulate_in_the_bias_of_the_gate(monkeypatch):
    change = "absolute(v) * exp2_(", "1.0000002f * absolute(v) * exp2_("  # as far as ex2.approx may be
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=change))
    torch.manual_seed(1)
    cell = AttnRNNCell(16, 48, heads=1, norm=False, context=("h", "x"))
    job = job_of(cell, 9, 33, FP32)  # steps enough for a sum, and a loss that changes slowly over them
    actual, loop = (
        kernel.run_with_gradients(code.run, cell, job)["dbias_g"] for code in (attn_rnn_row.KERNEL, any_loop)
    )
    true = kernel.run_with_gradients(any_loop.run, copy.deepcopy(cell).double(), job, torch.float64)["dbias_g"]
    assert (actual - true).norm() < (loop - true).norm()


FAULTS = {
    "attended before it is whole": ("attend(h, x[0], s));\n    wait_block();", "attend(h, x[0], s));"),
    "the next state seen too early": ("cp_async_wait<STAGES - 2>();\n    wait_block();\n  }\n", "  }\n"),
    "x not waited for": ("a.y_step, after);\n    cp_async_wait<STAGES - 2>();", "a.y_step, after);"),
    "lanes without a quad count one": ("has_quad(l) ? quad[e] - mean : 0.f", "quad[e] - mean"),
    "dgate taken before it came": ("wait_block();\n    float p[DEEP][4]", "float p[DEEP][4]"),
    "dq taken before it came": ("wait_block();\n    l.get(p, DQ);", "l.get(p, DQ);"),
}


PAIR_FAULTS = {
    "the product taken before it came": ("partner.take_message(t + 1);", ";"),
    "dgate's product taken before it came": ("partner.take_message(i + 1);", ";"),
    "the vector taken before it came": ("take_message(i);", ""),
    "the first input taken before it came": ("partner.take_message(0);\n  begin", "begin"),
    "dy sent to the wrong place": ("send(ring + (i & 1) * SLOT", "send(ring + (i + 1 & 1) * SLOT"),
}


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS | PAIR_FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    change = (FAULTS | PAIR_FAULTS)[fault]
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=change))
    monkeypatch.setattr(heuristics, "ROW_PAIR_HIDDEN", 0 if fault in PAIR_FAULTS else 96)
    cell = cell_of(48, 3)
    job = job_of(cell, 1, 6, FP32)
    try:
        ratio = worst(attn_rnn_row.KERNEL, cell, job, FP32)[0] if fault.startswith("d") else forward(cell, job)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
