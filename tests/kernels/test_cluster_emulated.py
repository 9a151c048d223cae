"""Clusters of blocks, the kernels' own text on the CPU: outputs and gradients against float64, and planted faults."""

import math
from dataclasses import replace

import emulator
import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, FP32, cell_of, everything, job_of, worst

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import backward
from seqloom.kernels.cuda.attn_rnn import cluster as attn_rnn_cluster
from seqloom.kernels.cuda.attn_rnn import grid as attn_rnn_grid
from seqloom.kernels.cuda.attn_rnn.cluster import ClusterDivision, choose_division, list_divisions
from seqloom.kernels.cuda.attn_rnn.setting import find_setting
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")


def test_every_size_has_clusters_that_hold_it():
    for size, largest in heuristics.CLUSTER_LARGEST_HIDDEN.items():
        for hidden in range(16, largest + 1, 16):
            for head in (hidden // n for n in range(1, 17) if hidden % n == 0):
                ways = list_divisions(hidden, head, size)
                assert ways and ways[0].rows == 8
                for way in ways:
                    assert way.cluster * way.units >= hidden and 16 * way.split * way.deep >= hidden
                    assert way.warps >= way.rows and way.units <= 64 and way.fits(head, size)


def test_a_batch_that_does_not_run_at_once_gets_more_rows_to_a_cluster():
    how = [find_setting(H, 4, BF16, ("h", "x"), True, False, False, False) for H in (256, 512, 768)]
    ways = [[choose_division(s, B, 132) for B in (56, 64, 256)] for s in how]
    assert [[(way.rows, way.cluster) for way in row] for row in ways] == [
        [(8, 4), (8, 4), (16, 4)],
        [(8, 16), (16, 16), (16, 8)],
        [(8, 16), (8, 16), (8, 16)],  # no block holds these weights and 16 rows
    ]


def test_a_large_layer_is_left_to_the_kernel_that_is_faster_there(monkeypatch):
    monkeypatch.setattr(attn_rnn_grid.KERNEL, "why_not", lambda *_: None)
    cells = {H: cell_of(H, 4) for H in (512, 768)}
    told = {
        (H, B): attn_rnn_cluster.KERNEL.why_not_auto(cells[H], job_of(cells[H], B, 1, BF16))
        for H in cells
        for B in (40, 64, 256)
    }
    assert [key for key, reason in told.items() if reason is None] == [(512, 40), (512, 256)]
    assert all("attn_rnn_grid" in told[key] for key in ((512, 64), (768, 40), (768, 64)))
    assert "another kernel is faster in bfloat16 with 768 units, 256 rows" in told[768, 256]
    whole = {H: cell_of(H, 4) for H in (256, 384)}
    told = {H: attn_rnn_cluster.KERNEL.why_not_auto(cell, job_of(cell, 2, 1, FP32)) for H, cell in whole.items()}
    assert told[256] is None and "attn_rnn_grid" in told[384]
    monkeypatch.setattr(heuristics, "allows_tf32", lambda: True)
    assert attn_rnn_cluster.KERNEL.why_not_auto(whole[384], job_of(whole[384], 2, 1, FP32)) is None


SHAPES = [
    (32, 4, BF16, 9, 3, {"lengths": True}, {}),  # one block, a head is half of a tile
    (192, 4, FP16, 3, 3, EVERYTHING, {"D": 24}),  # four blocks, a head each
    (144, 16, BF16, 2, 2, {}, {"norm": False, "context": ("h", "x")}),  # heads of 9 units lie across blocks
    (272, 2, BF16, 2, 2, {"reset": True}, {"context": ("x", "h*x")}),  # eight blocks, of which two have nothing to do
    (128, 1, BF16, 9, 3, {"lengths": True, "reset": True}, {}),  # what is attended is not sent
    (64, 4, FP32, 9, 3, EVERYTHING, {"D": 24}),
    (80, 1, FP32, 3, 3, {"lengths": True}, {}),  # two blocks, a head lies across them
    (144, 16, FP32, 2, 2, {}, {"context": ("h", "h*x")}),
    pytest.param(48, 1, FP32, 9, 33, {}, {"norm": False, "context": ("h", "x")}, marks=pytest.mark.long),  # sums cancel
]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings"), SHAPES)
def test_a_cluster_is_at_most_twice_as_far_from_float64_as_the_loop(H, heads, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, **settings)
    assert worst(attn_rnn_cluster.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype"), [(64, 2, FP32), (80, 2, BF16), (128, 1, FP16)])
def test_sixteen_rows_to_a_cluster(monkeypatch, H, heads, dtype):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 1)
    cell = cell_of(H, heads)
    asked = EVERYTHING | {"mask": H != 128}
    assert worst(attn_rnn_cluster.KERNEL, cell, job_of(cell, 18, 3, dtype, **asked), dtype)[0] < 2


def test_there_are_as_few_chunks_as_memory_allows():
    sizes = (1, 16, 64, 256, 4096)
    each = [backward.count_steps(torch.empty(B, 512, 256, dtype=BF16, device="meta")) for B in sizes]
    assert [math.ceil(512 / steps) for steps in each] == [1, 1, 4, 8, 8]


@pytest.mark.slow
def test_chunks_of_time_in_which_no_row_has_a_step(monkeypatch):
    monkeypatch.setattr(heuristics, "CHUNK_BYTES", 1)
    cell = cell_of(32, 4)
    job = replace(job_of(cell, 2, 7, BF16), lengths=torch.tensor([1, 2]))
    assert worst(attn_rnn_cluster.KERNEL, cell, job, BF16)[0] < 2


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FP16, FP32])
def test_weights_in_shared_memory(monkeypatch, dtype):
    monkeypatch.setattr(attn_rnn_cluster, "choose_division", lambda *_: ClusterDivision(8, 2, 1, 8, 1, 2))
    cell = cell_of(32, 4)
    assert worst(attn_rnn_cluster.KERNEL, cell, job_of(cell, 3, 3, dtype), dtype)[0] < 2


@pytest.mark.slow
def test_products_of_19_bits_where_torch_allows_them(monkeypatch):
    monkeypatch.setattr(attn_rnn_cluster, "allows_tf32", lambda: True)
    cell = cell_of(48, 2)
    ratio, _ = worst(attn_rnn_cluster.KERNEL, cell, job_of(cell, 3, 3, FP32), FP32)
    assert 2 < ratio < 2**13


@pytest.mark.slow
def test_values_past_a_length_have_no_effect():
    cell = cell_of(32, 4).to(BF16)
    job = job_of(cell, 3, 4, BF16, lengths=True)
    weigh = torch.randn(3, 4, 32).double(), torch.randn(3, 32).double()
    other = replace(job, x=job.x.masked_fill(~job.valid_steps().unsqueeze(-1), torch.nan))
    actual, again = (everything(attn_rnn_cluster.KERNEL.run, cell, j, weigh) for j in (job, other))
    for name, value in actual.items():
        assert torch.equal(value, again[name]), name


FAULTS = {
    "no barrier between the parts of q": (
        "b.gather(g);\n      if (b.is_member(g)) {\n        float q[2]",
        "if (b.is_member(g)) {\n        float q[2]",
    ),
    "the state taken before it came": (
        "b.take(FIRST, parity, g);\n      multiply(c, Wq",
        "multiply(c, Wq",
    ),
    "sent after the last step": ("if (t + 1 < end) begin();", "begin();"),
    "sums over a row not expected": ("b.expect_all(THIRD, ", "b.expect_all(-1, "),
    "no wait for the other blocks of a head": (
        "if constexpr (SPLIT_HEADS) await(barrier(HEAD, row_group), parity); else wait_warp();",
        "wait_warp();",
    ),
    "ds taken before it came": (
        "b.take(SECOND, parity, i);",
        "",
    ),
    "no barrier between the parts of W_q^T dq": (
        "b.put_part(back[i], i);\n      b.gather(i);",
        "b.put_part(back[i], i);",
    ),
    "x taken before it came": ("if constexpr (MIX_CONTEXT) b.wait_units();", ""),
    "sums over heads taken before they came": ("    await(barrier(HEAD, g), parity);\n", ""),
    "sent to the barrier of the other row_group": (
        "peer + barrier_offset(buffer, row_group), w);",
        "peer + barrier_offset(buffer, 0), w);",
    ),
}


@pytest.mark.sample(5)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, fault):
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    if "row_group" in fault:
        monkeypatch.setattr(launch, "multiprocessors", lambda _: 1)
    cell = cell_of(128 if "taken before" in fault else 80, 1)
    try:
        ratio, _ = worst(attn_rnn_cluster.KERNEL, cell, job_of(cell, 10 if "row_group" in fault else 2, 3, BF16), BF16)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
