"""A cell over a whole sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_lengths, read_state
from seqloom.core.errors import InputError
from seqloom.core.job import ScanJob, zero_padding
from seqloom.core.precision import autocast_dtype, useful_autocast, why_not_autocast
from seqloom.core.weights import bind_weights, resolve_weights, weights
from seqloom.kernels.dispatch import choose
from seqloom.kernels.op import scan_in_graph


def scan(
    cell: Cell,
    x: Tensor,
    state: State | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    kernel: str = "auto",
) -> tuple[Tensor, State]:
    """(B, T, D) -> outputs (B, T, H) and the last state; zeros past each row's length."""
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != cell.input_size:
        given = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InputError(f"x must be a Tensor (B, T, {cell.input_size}), got {given}")
    cell.check_type(x)
    if why_not_autocast(x.device.type):
        x = x.to(next(iter(weights(cell).values()), x).dtype)
    start = cell.start(x)
    if state is not None:
        start = read_state(state, [tuple(s.shape) for s in start], start[0])
    if lengths is not None:
        lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
    return run_job(cell, ScanJob(zero_padding(x, lengths), start, lengths), kernel)


def run_job(
    cell: Cell, job: ScanJob, kernel: str = "auto", values: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, State]:
    """A job by the kernel asked for; `values` stand in for weights of the same name."""
    if torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag:  # is_exporting() of 2.11 lies
        y, state = scan_in_graph(cell, job, kernel, values or {})
    else:
        if values:
            home, cell = cell, bind_weights(cell, values)
            cell.handle = home.handle  # what was compiled for the cell serves its views
        cell, job = resolve_weights(cell), job.resolve()
        with useful_autocast(job.x.device.type):
            y, state = choose(cell, job, kernel).kernel.code.run(cell, job)
    return y.to(output_dtype(job.x)), state


def output_dtype(x: Tensor) -> torch.dtype:
    """What a layer returns: the input's type, or autocast's where that is on."""
    return autocast_dtype(x.device.type) or x.dtype
