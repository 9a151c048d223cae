"""Blocks that take tiles of many rows, the kernels' own text on the CPU: against float64, and planted faults."""

import emulator
import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, FP32, cell_of, job_of, worst

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import scan, tiles
from seqloom.kernels.cuda.attn_rnn.setting import find_setting
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")
MULTIPROCESSORS = 8

SHAPES = [
    (128, 4, BF16, 3, 3, EVERYTHING, {}, (64, 32)),
    (128, 2, FP16, 34, 2, {"lengths": True}, {"norm": False, "context": ("h", "x")}, (32, 16)),
    (128, 2, FP32, 3, 3, {"lengths": True, "reset": True}, {}, (32, 16)),
    (128, 4, FP32, 2, 2, {"mask": True, "keep": True}, {}, (64, 32)),
]


WGMMA = [  # four warps multiply together; whether one thread fetches
    (128, 2, FP32, 36, 1, {"mask": True}, {}, 16, True),
    (256, 2, BF16, 36, 2, EVERYTHING, {}, 32, False),
    (256, 2, FP32, 36, 1, {"lengths": True, "reset": True}, {"norm": False}, 32, False),
]


def take_wgmma(monkeypatch, units):
    divisions = ((1024, ((64, units, True),)),)
    monkeypatch.setattr(heuristics, "TILES_HOPPER_DIVISIONS", {2: divisions, 4: divisions})
    monkeypatch.setattr(tiles, "has_wgmma", lambda _: True)


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings", "units", "bulk"), WGMMA)
def test_products_of_four_warps_are_at_most_twice_as_far_from_float64_as_the_loop(
    monkeypatch, H, heads, dtype, B, T, asked, settings, units, bulk
):
    take_wgmma(monkeypatch, units)
    cell = cell_of(H, heads, **settings)
    job = job_of(cell, B, T, dtype, **asked)
    code = tiles.find_code(scan.read_padded(cell, job), "forward", B, job.x.device)
    assert dict(code.macros)["WGMMA"] == 1
    assert dict(code.macros)["BULK"] == bulk
    assert worst(tiles.KERNEL, cell, job, dtype)[0] < 2


@pytest.mark.slow
def test_four_warps_multiply_19_bits_where_torch_allows_it(monkeypatch):
    take_wgmma(monkeypatch, 16)
    monkeypatch.setattr(tiles, "allows_tf32", lambda: True)
    cell = cell_of(128, 2)
    assert 2 < worst(tiles.KERNEL, cell, job_of(cell, 3, 1, FP32), FP32)[0] < 2**13


@pytest.mark.long
@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_four_warps_divide_many_columns(monkeypatch, dtype):
    take_wgmma(monkeypatch, 64)
    cell = cell_of(512, 2)
    assert worst(tiles.KERNEL, cell, job_of(cell, 36, 2, dtype, lengths=True), dtype)[0] < 2


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings", "division"), SHAPES)
def test_tiles_are_at_most_twice_as_far_from_float64_as_the_loop(
    monkeypatch, H, heads, dtype, B, T, asked, settings, division
):
    monkeypatch.setattr(heuristics, "TILES_DIVISIONS", (division,))
    cell = cell_of(H, heads, **settings)
    assert worst(tiles.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


def test_larger_batches_have_larger_tiles_and_shared_memory_is_full(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    device = torch.device("cpu")
    for hidden, expected in ((512, [(32, 16), (32, 16), (32, 32)]), (1024, [(32, 16), (32, 32), (64, 32)])):
        for dtype in (BF16, FP32):
            how = find_setting(hidden, 4, dtype, ("h", "x"), True, False, False, False)
            assert [tiles.choose_division(how, B, device)[:2] for B in (64, 128, 256)] == expected
            codes = [tiles.find_code(how, name, 256, device) for name in ("forward", "reverse")]
            assert all(0.8 * heuristics.SHARED_BYTES < code.shared <= heuristics.SHARED_BYTES for code in codes)


def test_large_tiles_have_wgmma_on_hopper(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(tiles, "has_wgmma", lambda _: True)
    chosen = {}
    for hidden, dtype in ((512, BF16), (1024, BF16), (512, FP32), (1024, FP32)):
        how = find_setting(hidden, 4, dtype, ("h", "x"), True, False, False, False)
        for B in (64, 128, 256):
            chosen[hidden, dtype, B] = tiles.choose_division(how, B, torch.device("cpu"))
            code = tiles.find_code(how, "forward", B, torch.device("cpu"))
            assert code.shared <= heuristics.SHARED_BYTES
            assert code.paired == (code.generation == "a") == chosen[hidden, dtype, B].wgmma
    assert chosen[1024, BF16, 256] == (64, 64, True)
    assert chosen[512, BF16, 256] == (32, 32, False)
    assert [chosen[1024, FP32, B] for B in (64, 128, 256)] == [(64, 16, True), (64, 32, True), (64, 64, True)]
    assert chosen[512, FP32, 256] == (64, 32, True)


def test_heads_that_are_no_whole_blocks_are_refused():
    how = find_setting(192, 8, BF16, ("h", "x"), True, False, False, False)  # heads of 24 units
    assert not tiles.list_divisions(how, False)


FAULTS = {
    "a message is read before it is complete": ("count += BLOCKS * PAIR;", ""),
    "a chunk is read before it has come": ("cp_async_wait<LEAD - 1>();", "cp_async_wait<LEAD>();"),
    "a quarter of the sums is left out": (
        "for (int k = 0; k < QUARTERS; k++) {",
        "for (int k = 1; k < QUARTERS; k++) {",
    ),
    "numbers have the unit of another block": ("(CHUNK / 2 * chunk + 16 * step) / UNITS * ROWS", "0"),
    "sums lie over numbers that are still read": (
        "multiply_chunk<N>(s, w, chunk); } wait_block();",
        "multiply_chunk<N>(s, w, chunk); }",
    ),
    "four warps: sums of the other block are read before they have come": ("wait_pair();", "wait_block();"),
}


@pytest.mark.sample(6)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    monkeypatch.setattr(heuristics, "TILES_DIVISIONS", ((32, 16),))
    if "four warps" in fault:
        take_wgmma(monkeypatch, 16)
    dtype = FP32 if "unit" in fault else BF16
    cell = cell_of(128, 2)
    try:
        ratio, _ = worst(tiles.KERNEL, cell, job_of(cell, 2, 3, dtype), dtype)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2


@pytest.mark.parametrize(
    ("H", "B", "dtype", "expected"),
    [
        (512, 64, BF16, False),
        (512, 256, BF16, True),
        (1024, 64, BF16, False),
        (1024, 128, BF16, True),
        (1024, 64, FP32, True),
    ],
)
def test_auto_takes_tiles_where_they_were_measured_to_be_faster(H, B, dtype, expected):
    cell = cell_of(16, 2)
    cell.hidden_size = H
    assert (tiles.KERNEL.why_not_auto(cell, job_of(cell_of(16, 2), B, 1, dtype)) is None) is expected
