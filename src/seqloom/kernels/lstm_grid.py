"""LSTM on a large NVIDIA GPU: on groups of blocks anywhere on it."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from seqloom.cell import Cell, State
from seqloom.job import Job
from seqloom.kernels import _gated_scan
from seqloom.kernels.lstm_cuda import KIND

MULTIPLE = 16  # of which the hidden size is one
not_unasked = partial(_gated_scan.not_unasked, KIND, grid=True)


def why_not(cell: Cell, job: Job) -> str | None:
    return _gated_scan.why_not(KIND, cell, job, grid=True)


def run(cell: Cell, job: Job) -> tuple[Tensor, State]:
    return _gated_scan.run(KIND, cell, job, grid=True)
