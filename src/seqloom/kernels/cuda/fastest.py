"""Why another kernel of a cell is faster on a GPU, by the rules of `../heuristics.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import heuristics

WhyNot = Callable[[Cell, ScanJob], str | None]


def why_not_fastest(backend: str, cell: Cell, job: ScanJob, others: Mapping[str, WhyNot]) -> str | None:
    """Return why `kernel="auto"` should prefer another kernel; None if this one is the fastest that can run.

    Args:
        backend: The name of the kernel that is asked.
        cell: The cell.
        job: What to run it over.
        others: For kernels that the registry lists later: returns why they cannot run, or None.
    """
    dtype, (B, T) = autocast_dtype("cuda") or job.x.dtype, job.x.shape[:2]
    sizes = heuristics.name_type(dtype), cell.hidden_size, B, T
    ranked = heuristics.rank_kernels(cell.name, *sizes, torch.is_grad_enabled(), job.is_plain, job.layers)
    faster = ranked[: ranked.index(backend)] if backend in ranked else ranked
    for name in faster:
        if name not in others:
            continue
        if others[name](cell, job) is None:
            return _explain(f"{cell.name}_{name}", *sizes, job.layers)
    return None if backend in ranked else _explain("another kernel", *sizes, job.layers)


def _explain(name: str, dtype: str, hidden: int, rows: int, steps: int, layers: int) -> str:
    sizes = [f"{hidden} units", f"{rows} rows", f"{steps} steps"] + ([f"{layers} layers"] if layers > 1 else [])
    return f"{name} is faster in {dtype} with {', '.join(sizes[:-1])} and {sizes[-1]}"
