"""min_gru by a parallel scan: its recurrence is linear in h."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._linear_scan import run_linear


def why_not(cell: Cell, job: Job) -> str | None:
    return "the number of its passes depends on the length" if torch.compiler.is_exporting() else None


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    return run_linear(cell, job)
