"""LSTM on an NVIDIA GPU in one kernel: up to 128 units on a block, above on a cluster of blocks."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _gated_scan
from seqloom.kernels._gated_code import Kind
from seqloom.kernels._twice import run_twice

MULTIPLE = 16  # of which the hidden size is one
KIND = Kind("lstm", gates=4, states=2)
not_unasked = _gated_scan.not_unasked


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.proj_size:
        return "it has no projected LSTM (proj_size)"
    return _gated_scan.why_not(KIND, cell, job)


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx = F.linear(x, w["weight_ih"], w.get("bias_ih"))
        own = [w["weight_hh"], w.get("bias_hh"), None, None, None]
        return _gated_scan.scan(KIND, cell, job, w, gx, state, own)

    return run_twice(cell, job, cell.own(), fused)
