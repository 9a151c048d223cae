"""Blocks that talk through packets, the kernels' own text on the CPU: against float64, and planted faults."""

import emulator
import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, FP32, cell_of, job_of, worst

from seqloom.kernels import heuristics
from seqloom.kernels.cuda.attn_rnn import grid
from seqloom.kernels.cuda.attn_rnn.setting import find_setting
from seqloom.kernels.cuda.runtime import launch

pytestmark = pytest.mark.usefixtures("emulated")
MULTIPROCESSORS = 8  # few, or a group would have one row


def test_groups_fill_the_gpu_and_take_more_rows_for_larger_batches(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    how = find_setting(1024, 4, BF16, ("h", "x"), True, False, False, False)
    actual = [grid.find_code(how, "forward", B, torch.device("cpu")) for B in (1, 32, 33, 64)]
    assert [(code.rows, code.blocks, code.threads) for code in actual] == [(8, 32, 256)] * 2 + [(16, 32, 256)] * 2
    whole = find_setting(1024, 4, FP32, ("h", "x"), True, False, False, False)
    actual += [grid.find_code(whole, "reverse", B, torch.device("cpu")) for B in (16, 17)]
    assert [(code.rows, code.blocks) for code in actual[4:]] == [(8, 64), (16, 64)]
    assert all(
        heuristics.SHARED_BYTES / 2 < code.shared <= heuristics.SHARED_BYTES for code in actual
    )  # one block to a multiprocessor


def test_the_forward_of_many_blocks_fills_its_groups_and_the_reverse_takes_more_of_them(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    seen = []
    monkeypatch.setattr(
        launch.CudaCode, "launch", lambda _, arguments, blocks, __: seen.append((blocks, arguments.group_rows))
    )
    for hidden, name in ((1024, "forward"), (1024, "reverse"), (512, "forward")):
        how = find_setting(hidden, 4, BF16, ("h", "x"), True, False, False, False)
        code = grid.make_code(how, name, 8, 32)
        code.start(code.pack({}), 16, torch.device("cpu"))
    assert seen == [(2 * 32, 8), (4 * 32, 4), (8 * 16, 2)]


SHAPES = [
    (96, 2, FP16, 3, 3, EVERYTHING, {"D": 24}),  # three blocks, heads of 48: one block is in two of them
    (176, 16, BF16, 2, 2, {}, {"norm": False, "context": ("h", "x")}),  # six blocks, the last half full; heads of 11
    (256, 2, BF16, 3, 3, {"lengths": True, "reset": True}, {}),  # a head is four blocks: what is attended is not sent
    (192, 3, FP16, 2, 3, {"mask": True}, {"context": ("h", "h*x")}),  # of two, and nobody has h as it was
    (128, 4, FP32, 3, 3, {"lengths": True}, {}),  # eight blocks of 16: two warps have them; a head is two of them
    (144, 3, FP32, 2, 3, {"mask": True, "keep": True}, {"norm": False, "context": ("h", "x")}),  # a third warp has one
]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "dtype", "B", "T", "asked", "settings"), SHAPES)
def test_a_grid_is_at_most_twice_as_far_from_float64_as_the_loop(H, heads, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, **settings)
    assert worst(grid.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


MANY = [
    (80, BF16, 18, EVERYTHING),
    (64, BF16, 36, {"lengths": True, "keep": True}),
    (160, FP32, 18, {"lengths": True, "reset": True}),  # ten blocks: three warps have some, and the third not as many
]


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "dtype", "B", "asked"), MANY)
def test_sixteen_rows_to_a_group_and_more_groups_than_the_gpu_has_room_for(monkeypatch, H, dtype, B, asked):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: H // 16)
    cell = cell_of(H, 2)
    assert worst(grid.KERNEL, cell, job_of(cell, B, 2, dtype, **asked), dtype)[0] < 2


WIDE = [
    (80, 2, 3, EVERYTHING, {}),  # three blocks, the last half full; heads of 40
    (128, 2, 3, {"lengths": True}, {}),  # a head is two blocks: what is attended is not sent
    (96, 3, 3, {"reset": True}, {"context": ("h", "x")}),  # a head is one block, two sources
    (160, 4, 18, {"lengths": True}, {}),  # 16 rows to a group
]


@pytest.mark.sample(4)
@pytest.mark.slow
@pytest.mark.parametrize(("H", "heads", "B", "asked", "settings"), WIDE)
def test_a_block_of_32_units_in_float32_is_two_sources(monkeypatch, H, heads, B, asked, settings):
    monkeypatch.setattr(heuristics, "GRID_UNITS", {4: (32,)})
    cell = cell_of(H, heads, **settings)
    assert worst(grid.KERNEL, cell, job_of(cell, B, 3, FP32, **asked), FP32)[0] < 2


def test_blocks_have_32_units_in_float32_where_more_rows_then_run_at_once(monkeypatch):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 132)
    for hidden, expected in ((512, [(8, 32), (8, 16), (16, 16), (16, 16)]), (1024, [(16, 64)] * 4)):
        how = find_setting(hidden, 4, FP32, ("h", "x"), True, False, False, False)
        codes = [grid.find_code(how, "forward", B, torch.device("cpu")) for B in (32, 64, 128, 256)]
        assert [(code.rows, code.blocks) for code in codes] == expected
        assert all(code.shared <= heuristics.SHARED_BYTES for code in codes)


@pytest.fixture
def two_rounds(monkeypatch):
    """Act as with more than 32 blocks, which would take long here."""
    monkeypatch.setattr(heuristics, "GRID_ONE_ROUND_SOURCES", 0)
    grid.make_code.cache_clear()
    yield
    grid.make_code.cache_clear()


@pytest.mark.sample(2)
@pytest.mark.slow
@pytest.mark.usefixtures("two_rounds")
@pytest.mark.parametrize(("H", "heads", "B", "asked"), [(128, 4, 3, {"lengths": True}), (144, 2, 10, {"reset": True})])
def test_a_warp_can_read_from_eight_blocks(monkeypatch, H, heads, B, asked):
    monkeypatch.setattr(launch, "multiprocessors", lambda _: 10)
    cell = cell_of(H, heads)
    assert worst(grid.KERNEL, cell, job_of(cell, B, 2, FP32, **asked), FP32)[0] < 2


@pytest.mark.slow
def test_products_of_19_bits_are_taken_where_torch_allows_them(monkeypatch):
    cell = cell_of(64, 2)
    job = job_of(cell, 2, 2, FP32)
    monkeypatch.setattr(grid, "allows_tf32", lambda: True)
    assert 2 < worst(grid.KERNEL, cell, job, FP32)[0] < 2**13


FAULTS = {
    "a packet read without its number": ("missing |= p[k][3] != numbers[k];", ";"),
    "parts of sums in one place": (
        "parts = memory + (message_count[g] & 1) * PARTS;",
        "",
    ),  # seen where two warps have blocks to wait for
    "a warp that takes from no block runs ahead": (" || SOURCES * slice >= ALL_SOURCES", ""),
    "words of two blocks for those of one": ("+ 4 * (k / PACKETS);", ";"),
    "squares from the mean of another": (
        "const float difference = sums[r][0] * (1.0f / SOURCE_UNITS) - mean;",
        "const float difference = 0.f;",
    ),
    "sums over a row that nobody sends": ("b.expect_all(THIRD, MIX_CONTEXT ? SECOND : -1);", ""),
}
WHOLE = ("words of two blocks for those of one", "squares from the mean of another")  # of float32
SIZES = {"parts of sums in one place": 160, **dict.fromkeys(WHOLE, 96)}


@pytest.mark.sample(8)
@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_caught(monkeypatch, request, fault):
    if fault in WHOLE:
        request.getfixturevalue("two_rounds")
    monkeypatch.setattr(launch.CudaCode, "launch", lambda *given: emulator.launch(*given, change=FAULTS[fault]))
    if "ahead" in fault:  # of two row_groups
        monkeypatch.setattr(launch, "multiprocessors", lambda _: 2)
    cell = cell_of(SIZES.get(fault, 64), 2)
    dtype = FP32 if fault in WHOLE else BF16
    try:
        ratio, _ = worst(grid.KERNEL, cell, job_of(cell, 10 if "ahead" in fault else 2, 3, dtype), dtype)
    except RuntimeError:
        return  # the emulation itself saw it
    assert ratio > 2
