"""AttnRNN with hidden sizes that are no whole tiles: the kernels run with padded heads, emulated on the CPU."""

from dataclasses import replace

import pytest
import torch
from test_cuda_emulated import BF16, EVERYTHING, FP16, FP32, cell_of, job_of, worst

from seqloom.kernels import loop
from seqloom.kernels.cuda.attn_rnn import block, cluster, grid, row, scan

pytestmark = pytest.mark.usefixtures("emulated")
MULTIPROCESSORS = 8  # few, or a group would have one row

SHAPES = [
    (block, 20, 2, BF16, 3, 4, EVERYTHING, {"D": 8}),  # heads of 10 units become 16
    (block, 100, 4, FP16, 2, 3, {}, {"norm": False}),  # heads of 25 become 28
    (row, 36, 3, FP32, 2, 4, EVERYTHING, {}),
    (row, 100, 4, FP32, 2, 3, {"lengths": True}, {}),
    (cluster, 100, 4, BF16, 3, 3, {"reset": True}, {}),
    (cluster, 44, 2, FP32, 3, 3, EVERYTHING, {}),
    (grid, 100, 4, FP32, 3, 3, {"lengths": True}, {}),
    (grid, 44, 1, BF16, 3, 3, {"mask": True}, {}),
]


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "H", "heads", "dtype", "B", "T", "asked", "settings"), SHAPES)
def test_padded_heads_are_at_most_twice_as_far_from_float64_as_the_loop(kernel, H, heads, dtype, B, T, asked, settings):
    cell = cell_of(H, heads, **settings)
    assert worst(kernel.KERNEL, cell, job_of(cell, B, T, dtype, **asked), dtype)[0] < 2


def test_second_derivatives_of_padded_heads_are_those_of_the_loop():
    cell = cell_of(20, 2)
    job = job_of(cell, 2, 3, FP32, mask=True)

    def second(run):
        x = job.x.clone().requires_grad_()
        y, _ = run(cell, replace(job, x=x))
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *cell.parameters()], allow_unused=True)

    for actual, expected in zip(second(row.KERNEL.run), second(loop.run), strict=True):
        assert (actual is None) == (expected is None)
        if actual is not None:
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def test_heads_are_padded_until_all_units_are_whole_tiles():
    sizes = {
        (H, heads): heads * scan.pad_head(cell_of(H, heads)) for H, heads in ((100, 4), (300, 4), (36, 3), (64, 4))
    }
    assert sizes == {(100, 4): 112, (300, 4): 304, (36, 3): 48, (64, 4): 64}
