"""The reference loop: the cell's step, once for every time step. It defines the result of a scan."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, advance


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return None: the loop runs every cell and job."""
    return None


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the last state."""
    x, state, now = cell.project(job.x), job.state, job.per_step()
    start = cell.start(job.x) if job.reset is not None else ()
    ys = []
    try:
        for t in range(x.shape[1]):
            y, state = advance(cell, x[:, t], state, {n: v[t] for n, v in now.items()}, start, job.mask)
            ys.append(y)
    except ValueError as error:
        if "values to unpack" in str(error) and type(cell).initial_state is Cell.initial_state:
            error.add_note(
                f"{type(cell).__name__} starts from one state, the default; a cell with more of them defines "
                "initial_state(x), which returns a tuple of all"
            )
        raise
    return torch.stack(ys, 1), state
