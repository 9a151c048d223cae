"""LSTM on the CPU engine."""

from __future__ import annotations

import platform

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import why_not_cpu
from seqloom.kernels._cpu_scan import run_cpu
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice

LARGE = 512
# oneDNN has a fused LSTM on x86 alone: on a Neoverse-N1 (B=16, H=256) torch takes 278 ms, the engine 74.
ONEDNN = platform.machine().lower() in ("x86_64", "amd64")


def why_not(cell: Cell, job: Job) -> str | None:
    if cell.proj_size:
        return "the CPU engine has no projected LSTM (proj_size)"
    return why_not_cpu(cell, job) or transformed()


def not_unasked(cell: Cell, job: Job) -> str | None:
    even = job.plain and job.lengths is None and job.x.dtype == torch.float32
    if not (ONEDNN and even and cell.hidden_size < LARGE):
        return None
    return f"torch's own (oneDNN) is faster below {LARGE} units where all lengths are equal"


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        gx = F.linear(x, w["weight_ih"], w.get("bias_ih"))
        return run_cpu("lstm", cell, job, w, gx, state, [w["weight_hh"], w.get("bias_hh")])

    return run_twice(cell, job, cell.own(), fused)
