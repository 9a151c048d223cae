"""The compiler's kernel for cells that torch has kernels for, too: used on GPUs where it is faster than cuDNN."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import heuristics
from seqloom.kernels.compiled import kernel
from seqloom.kernels.compiled.kernel import Found, describe

__all__ = ["describe", "prepare", "run", "why_not", "why_not_auto"]


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return why this cell or job cannot run here; None if it can."""
    return kernel.why_not(cell, job) if job.x.is_cuda else "it is for CUDA tensors"


def prepare(cell: Cell, job: ScanJob) -> Found | str:
    """Return an object that runs jobs like this one, or why there is none."""
    return kernel.prepare(cell, job) if job.x.is_cuda else "it is for CUDA tensors"


def why_not_auto(cell: Cell, job: ScanJob) -> str | None:
    """Return why another kernel is better for this job; None if none is."""
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    if job.x.dtype != torch.float32 or autocast_dtype("cuda") is not None:
        return "cuDNN and the gated kernels are faster in other types than float32"
    both, forward, most = heuristics.COMPILED_OWN[cell.name]
    least = both if torch.is_grad_enabled() else forward
    if not least <= cell.hidden_size <= most:
        return f"the compiled kernel was measured to be faster than cuDNN from {least} to {most} units"
    shortest = heuristics.COMPILED_OWN_STEPS[0 if torch.is_grad_enabled() else 1]
    if job.x.shape[1] < shortest:
        return f"cuDNN is faster for fewer than {shortest} steps"
    if job.x.shape[0] > heuristics.COMPILED_OWN_ROWS:
        return f"the compiled kernel was measured with up to {heuristics.COMPILED_OWN_ROWS} rows"
    return kernel.why_not_auto(cell, job)


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Run the cell over the job's sequences."""
    return kernel.run(cell, job)
