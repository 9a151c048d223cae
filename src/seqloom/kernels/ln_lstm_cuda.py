"""LSTM with layer normalisation on an NVIDIA GPU."""

from __future__ import annotations

from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _gated_scan
from seqloom.kernels._gated_code import Kind
from seqloom.kernels._twice import run_twice
from seqloom.weights import bound

MULTIPLE = 16  # of which the hidden size is one
KIND = Kind("lstm", gates=4, states=2, norm=True, memory=True)
NAMES = ("weight_hh", "bias_hh", "scale_hh", "scale_c", "bias_c")


def why_not(cell: Cell, job: Job) -> str | None:
    return _gated_scan.why_not(KIND, cell, job)


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    def fused(x: Tensor, state: State, w: dict[str, Tensor]) -> tuple[Tensor, State]:
        return _gated_scan.scan(KIND, cell, job, w, bound(cell, w).project(x), state, [w[name] for name in NAMES])

    return run_twice(cell, job, cell.own(), fused)
