"""GRU and LSTM on blocks that talk through packets, the kernels' own text on the CPU: against float64, and faults."""

import statistics

import emulator
import pytest
import torch
from test_gated_emulated import ALL, BF16, FP16, FP32, KINDS, cell_of, job_of, worst

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated import code, kernels
from seqloom.kernels.cuda.gated.code import GatedSetting, find_code
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")
MULTIPROCESSORS = 8  # few, or a group would have one row


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_block_has_room_for_its_weights(monkeypatch, kind):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    how = GatedSetting(kind, 1024, BF16, False, False, False, grid=True)
    for name in ("forward", "reverse"):
        actual = [find_code(how, name, B, torch.device("cpu")) for B in (32, 33)]
        assert [(each.rows, each.blocks, each.threads) for each in actual] == [(8, 32, 256), (16, 32, 256)]
        for each in actual:
            held = kind.gates * 16 - dict(each.macros)["IN_SHARED"]
            assert heuristics.SHARED_BYTES / 2 < each.shared <= heuristics.SHARED_BYTES and 0 <= held <= 28


SHAPES = [
    ("gru", 96, BF16, 3, 4, ""),  # three blocks
    ("gru", 144, FP16, 3, 3, ALL),  # five, so that a second warp has one, and the last half full
    ("lstm", 64, FP16, 3, 3, ALL),
    ("ln_lstm", 144, BF16, 2, 3, "lengths keep"),
    ("ln_gru", 80, BF16, 3, 3, ALL),
    ("gru", 80, FP32, 3, 4, ALL),  # five blocks of 16 units
    ("lstm", 64, FP32, 9, 3, ""),
    ("rnn", 528, FP32, 2, 3, ""),  # 33 blocks, in two rounds of messages
]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "H", "dtype", "B", "T", "wishes"), SHAPES)
def test_a_grid_is_at_most_twice_as_far_from_float64_as_the_loop(name, H, dtype, B, T, wishes):
    cell = cell_of(name, 24, H)
    assert worst(name, cell, job_of(cell, B, T, dtype, wishes), dtype, "grid")[0] < 2


@pytest.mark.slow
def test_sums_of_a_group_that_is_no_cluster_are_packets(monkeypatch):
    monkeypatch.setattr(code, "is_clustered", lambda *_: False)
    cell = cell_of("ln_lstm", 24, 80)
    assert worst("ln_lstm", cell, job_of(cell, 3, 3, BF16, ALL), BF16, "grid")[0] < 2


@pytest.mark.parametrize(
    ("name", "hidden", "B", "expected"),
    [("ln_gru", 512, 56, True), ("ln_gru", 512, 64, False), ("ln_lstm", 528, 8, False), ("gru", 512, 16, False)],
)
def test_groups_of_normalised_cells_are_clusters_if_all_run_at_once(monkeypatch, name, hidden, B, expected):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    kind = kernels.KINDS[name]
    how = GatedSetting(kind, hidden, BF16, mask=False, keep=False, reset=False, grid=True)
    for back in ("forward", "reverse"):
        found = find_code(how, back, B, torch.device("cpu"))
        assert found.clustered is expected and found.shared <= heuristics.SHARED_BYTES


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "B"), [("gru", 18), ("ln_lstm", 20)])
def test_sixteen_rows_to_a_group_several_turns_and_chunks(monkeypatch, name, B):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 2)
    monkeypatch.setattr(heuristics, "GATED_CHUNK_NUMBERS", B * 48)
    cell = cell_of(name, 24, 48)
    jobs = [job_of(cell, B, 3, BF16, "lengths reset") for _ in range(3)]  # rounding has a part in each ratio
    assert statistics.geometric_mean(worst(name, cell, job, BF16, "grid")[0] for job in jobs) < 2


WIDE = [("gru", 80, 3, 4, ALL), ("lstm", 144, 9, 3, ""), ("gru", 544, 2, 3, "")]  # three, five and 17 blocks


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("name", "H", "B", "T", "wishes"), WIDE)
def test_a_block_of_32_units_in_float32_is_two_sources(monkeypatch, name, H, B, T, wishes):
    monkeypatch.setattr(heuristics, "GATED_GRID_UNITS", {4: (32,)})
    cell = cell_of(name, 24, H)
    assert worst(name, cell, job_of(cell, B, T, FP32, wishes), FP32, "grid")[0] < 2


def test_blocks_have_32_units_in_float32_where_more_rows_then_run_at_once(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    for kind, hidden, expected in (
        (KINDS[0], 512, [(8, 32), (8, 16), (16, 16), (16, 16)]),
        (KINDS[0], 1024, [(16, 64)] * 4),
    ):
        how = GatedSetting(kind, hidden, FP32, False, False, False, grid=True)
        codes = [find_code(how, "forward", B, torch.device("cpu")) for B in (32, 64, 128, 256)]
        assert [(each.rows, each.blocks) for each in codes] == expected
        assert all(each.shared <= heuristics.SHARED_BYTES for each in codes)


FAULTS = {
    "one side": ("packets + (i & 1) * SIDE + (8 * ((column", "packets + (8 * ((column"),
    "a number that stays": ("to_bits(c), i + 1);", "to_bits(c), 1);"),
    "parts of sums that are written over": ("side_work(); wait_block();", "side_work();"),
    "another block's units": ("8 / SIZE * (k % WIDE)", "8 / SIZE * (k % WIDE ^ 1)"),
    "sums of one block": (
        "find_sums(WHICH, i) + column * CLUSTER + other",
        "find_sums(WHICH, i) + column * CLUSTER + rank",
    ),
    "near sums of one block": (
        "(find_side(WHICH, i) * SUMS + column * CLUSTER + lane % 16)",
        "(find_side(WHICH, i) * SUMS + column * CLUSTER + rank)",
    ),
    "near sums that are not awaited": ("await(barrier(find_side(WHICH, i)), WHICH ? i & 1 : i >> 1 & 1);", ""),
    "near sums that nobody expects": ("expect(barrier(find_side(0, i)), 16 * CLUSTER * rows);", ""),
}


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    monkeypatch.setattr(code, "is_clustered", lambda *_: "near" in fault)
    name = "ln_gru" if "sums of one" in fault or "near" in fault else "gru"
    cell = cell_of(name, 24, 160)
    try:
        ratio, _ = worst(name, cell, job_of(cell, 3, 4, BF16), BF16, "grid")
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
