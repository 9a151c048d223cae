"""GRU on an NVIDIA GPU in one kernel: up to 128 units on a block, above on a cluster of blocks."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _gated_scan
from seqloom.kernels._gated_code import Kind

MULTIPLE = 16  # of which the hidden size is one
KIND = Kind("gru", gates=3, states=1)
not_unasked = partial(_gated_scan.not_unasked, KIND)


def why_not(cell: Cell, job: Job) -> str | None:
    if not cell.reset_after:
        return "it applies the reset gate after the product (reset_after=True)"
    return _gated_scan.why_not(KIND, cell, job)


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    return _gated_scan.run(KIND, cell, job)
