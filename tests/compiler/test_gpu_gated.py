"""Compiled cells in the gated kernels on a real GPU: blocks, clusters and grids. Run by `make test-gpu`."""

from dataclasses import replace

import pytest
import test_gated_text as cells
import torch

from seqloom.kernels.compiled import gated

pytestmark = pytest.mark.gpu
BF16, FP16 = torch.bfloat16, torch.float16
KINDS = [cells.Leaky, cells.Mgu, cells.Janet, cells.LightGru, cells.TwoStates, cells.Exponential, cells.Scaled]
KINDS += [cells.Hidden]


def job_of(cell, B, T, dtype, wishes):
    job = cells.job_of(cell, B, T, dtype, wishes)
    moved = {n: t.cuda() for n in ("x", "lengths", "reset", "dt", "mask") if (t := getattr(job, n)) is not None}
    return replace(job, **moved, **{n: tuple(t.cuda() for t in getattr(job, n)) for n in ("state", "keep")})


def wishes_of(kind):
    """Everything that a cell can take."""
    words = ["lengths", "reset"] + ["mask"] * ("mask" in kind.takes) + ["keep"] * (kind is not cells.Hidden)
    return " ".join(words)


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("H", [64, 256, 512], ids=["block", "cluster", "grid"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_compiled_cell_is_at_most_twice_as_far_from_float64_as_the_loop(kind, H, dtype):
    cell = cells.cell_of(kind, H)
    job = job_of(cell, 19, 12, dtype, wishes_of(kind))
    cell = cell.cuda()
    assert isinstance(gated.find(cell.to(dtype), job), gated.FittingCell)
    ratio, part = cells.worst(cell, job, dtype)
    assert ratio < 2, part


def test_cells_of_the_same_size_do_not_share_a_kernel():
    for kind in (cells.Mgu, cells.Janet):
        cell = cells.cell_of(kind, 512)
        job = job_of(cell, 9, 7, BF16, "")
        assert cells.worst(cell.cuda(), job, BF16)[0] < 2


def test_it_runs_under_autocast():
    cell = cells.cell_of(cells.Mgu, 64).cuda()
    job = job_of(cell.cpu(), 9, 7, torch.float32, "lengths")
    cell = cell.cuda()
    with torch.autocast("cuda", BF16):
        assert isinstance(gated.find(cell, job), gated.FittingCell)
        mine, loops = (cells.everything(run, cell, job) for run in (cells.run_gated, cells.loop.run))
    for part, t in loops.items():
        assert (mine[part] - t).norm() <= 0.03 * t.norm(), part
