"""GRU on the CPU engine."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import why_not_cpu
from seqloom.kernels._cpu_scan import run_cpu
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice


def why_not(cell: Cell, job: Job) -> str | None:
    if not cell.reset_after:
        return "the CPU engine applies the reset gate after the product (reset_after=True)"
    return why_not_cpu(cell, job) or transformed()


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx = F.linear(x, w["weight_ih"], w.get("bias_ih"))
        return run_cpu("gru", cell, job, w, gx, state, [w["weight_hh"], w.get("bias_hh")])

    return run_twice(cell, job, cell.own(), fused)
