"""The reference loop: the cell's step, run once per time step. It defines the result of a scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import can_read
from seqloom.core.job import ScanJob, advance


def why_not(cell: Cell, job: ScanJob) -> str | None:
    """Return None: the loop runs every cell and job."""
    return None


def run(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the last state.

    A step only sees the rows that have not ended: at padding its derivative may be infinite, such as that of a square
    root at 0, and infinity times 0 would be NaN. If the lengths cannot be read, for example while a graph is recorded,
    `run_masked` runs instead.
    """
    try:
        if job.lengths is not None and can_read(job.lengths):
            return _run_sorted(cell, job, job.lengths.tolist())
        return run_masked(cell, job)
    except ValueError as error:
        if "values to unpack" in str(error) and type(cell).initial_state is Cell.initial_state:
            error.add_note(
                f"{type(cell).__name__} starts from one state, the default; a cell with more of them defines "
                "initial_state(x), which returns a tuple of all"
            )
        raise


def run_masked(cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
    """Return the result of `run`, with every row in every step; results for padding are discarded."""
    x, state, now = cell.project(job.x), _copy_states(job.state), job.per_step()
    start = cell.start(job.x) if job.reset is not None else ()
    ys = []
    for t in range(x.shape[1]):
        y, state = advance(cell, _copy(x[:, t]), state, {n: v[t] for n, v in now.items()}, start, job.mask)
        ys.append(y)
    return torch.stack(ys, 1), state


def _run_sorted(cell: Cell, job: ScanJob, lengths: Sequence[int]) -> tuple[Tensor, State]:
    """Run the longest rows first, so that those of a step are the first ones."""
    B, T = len(lengths), job.x.shape[1]
    rows = sorted(range(B), key=lambda i: -lengths[i])
    order = torch.tensor(rows, dtype=torch.int64, device=job.x.device)
    x, mask = cell.project(job.x)[order], None if job.mask is None else job.mask[order]
    start = tuple(s[order] for s in cell.start(job.x)) if job.reset is not None else ()
    state, now = tuple(s[order] for s in job.state), replace(job, lengths=None).per_step()
    now = {name: t[:, order] for name, t in now.items()}
    ys: list[Tensor] = []
    ended: list[State] = []  # rows with fewer steps first
    running = B
    for t in range(max(min(T, 1), *lengths, 0)):  # once without rows, if all are empty: gradients are 0 then
        n = sum(length > t for length in lengths)
        if n < running:
            ended.append(tuple(s[n:] for s in state))
            state, running = _cut(state, n), n
        step = {name: v[t, :n] for name, v in now.items()}
        y, state = advance(cell, _copy(x[:n, t]), state, step, _cut(start, n), None if mask is None else mask[:n])
        ys.append(y if n == B else torch.cat([y, y.new_zeros(B - n, *y.shape[1:])]))
    if not ys:
        return job.x.new_zeros(B, T, cell.output_size), job.state
    outputs = torch.stack(ys, 1)
    if len(ys) < T:
        outputs = torch.cat([outputs, outputs.new_zeros(B, T - len(ys), *outputs.shape[2:])], 1)
    back = torch.argsort(order)
    parts = zip(state, *reversed(ended), strict=True)
    return outputs[back], tuple(torch.cat(part)[back] for part in parts)


def _copy(x: Tensor) -> Tensor:
    """Return what a step reads; on a GPU a copy, as the numbers of `dropout` depend on the layout of its input."""
    return x.clone(memory_format=torch.contiguous_format) if x.is_cuda else x


def _copy_states(state: State) -> State:
    return tuple(_copy(s) for s in state)


def _cut(state: State, n: int) -> State:
    return tuple(s[:n] for s in state)
