"""LSTM with layer normalisation on the CPU engine."""

from __future__ import annotations

from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels._cpu import why_not_cpu
from seqloom.kernels._cpu_scan import run_cpu
from seqloom.kernels._transforms import transformed
from seqloom.kernels._twice import run_twice
from seqloom.weights import bound

NAMES = ("weight_hh", "scale_hh", "bias_hh", "scale_c", "bias_c")


def why_not(cell: Cell, job: Job) -> str | None:
    return why_not_cpu(cell, job) or transformed()


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        return run_cpu("ln_lstm", cell, job, w, bound(cell, w).project(x), state, [w[name] for name in NAMES])

    return run_twice(cell, job, cell.own(), fused)
