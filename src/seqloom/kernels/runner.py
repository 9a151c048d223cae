"""Run a cell over a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.checks import read_lengths, read_state
from seqloom.core.errors import InputError
from seqloom.core.job import ScanJob, zero_padding
from seqloom.core.precision import autocast_dtype, useful_autocast, why_not_autocast
from seqloom.core.weights import bind_weights, resolve_weights, restore_parameters, weights
from seqloom.kernels.dispatch import choose
from seqloom.kernels.op import scan_in_graph
from seqloom.kernels.parallel import chunks
from seqloom.kernels.parallel.experience import check_parallel, find_steps


def scan(
    cell: Cell,
    x: Tensor,
    state: State | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    kernel: str = "auto",
    parallel: str | int = "auto",
) -> tuple[Tensor, State]:
    """Run a cell over a batch of sequences, with the fastest kernel that fits.

    Args:
        cell: The cell.
        x: (B, T, D).
        state: The state before the first step; the cell's initial state if omitted.
        lengths: (B,), the real steps of each row; T if omitted.
        kernel: "auto", or the name of a kernel such as "cpu", "loop" or "gru_aten".
        parallel: Whether a long sequence may be divided into chunks that run in parallel; see `Recurrent`.

    Returns:
        The outputs (B, T, H), 0 after each row's length, and the state after each row's last real step.

    Raises:
        InputError: If a shape, dtype or device does not fit.
        UserError: If the kernel does not exist or cannot run this input; with the reason.

    Example:
        >>> cell = seqloom.LSTMCell(4, 8)
        >>> y, (h, c) = seqloom.scan(cell, torch.randn(3, 10, 4), lengths=[10, 7, 2])
        >>> y.shape, h.shape
        (torch.Size([3, 10, 8]), torch.Size([3, 8]))
    """
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != cell.input_size:
        actual = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
        raise InputError(f"x must be a Tensor (B, T, {cell.input_size}), got {actual}")
    check_parallel(parallel)
    restore_parameters(cell)
    cell.check_type(x)
    if why_not_autocast(x.device.type):
        x = x.to(next(iter(weights(cell).values()), x).dtype)
    start = cell.start(x)
    if state is not None:
        start = read_state(state, [tuple(s.shape) for s in start], start[0])
    if lengths is not None:
        lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
    return run_job(cell, ScanJob(zero_padding(x, lengths), start, lengths), kernel, parallel=parallel)


def run_job(
    cell: Cell,
    job: ScanJob,
    kernel: str = "auto",
    values: Mapping[str, Tensor] | None = None,
    parallel: str | int = "never",
) -> tuple[Tensor, State]:
    """Run a job.

    Args:
        cell: The cell.
        job: Its input.
        kernel: "auto" or the name of a kernel.
        values: Tensors that replace weights of the same name.
        parallel: "auto", "never", or the steps of the chunks that run in parallel.

    Returns:
        The outputs (B, T, H) and the last state.
    """
    if (
        torch.compiler.is_dynamo_compiling() and not torch.compiler._is_exporting_flag
    ):  # torch 2.11's is_exporting() is wrong here
        y, state = scan_in_graph(cell, job, kernel, values or {})
    else:
        if values:
            home, cell = cell, bind_weights(cell, values)
            cell.handle = home.handle  # a view uses what was compiled for the cell
        cell, job = resolve_weights(cell), job.resolve()
        with useful_autocast(job.x.device.type):
            if chunks.can_divide(job.state) and (steps := find_steps(cell, job.x, parallel)):
                y, state = chunks.run(cell, job, kernel, steps, is_auto=parallel == "auto")
            else:
                y, state = choose(cell, job, kernel).run(cell, job)
    return y.to(output_dtype(job.x)), state


def output_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of a layer's output: autocast's if autocast is on, else the input's."""
    return autocast_dtype(x.device.type) or x.dtype
