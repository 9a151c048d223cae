"""Run stacked layers over a long sequence as a wavefront on a GPU.

Each layer works on a chunk of time, one chunk behind the layer below. A layer with few rows fills only a fraction of a
GPU, for a time that grows with the length. The state is carried from chunk to chunk in full precision, so the results
are those of one scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels.dispatch import choose
from seqloom.kernels.runner import run_job
from seqloom.layers.recurrent.gpu.streams import CellJob, assign_streams, can_use_streams, host_keeps_up

CHUNK_STEPS = 512  # shortest chunk: the host starts one before a GPU has run the last
MAX_CHUNKS = 8  # each chunk adds to the weights' gradients once more, in their type
GPU_CAPACITY = 1 << 24  # rows * layers * units^2 that a large GPU runs at once; more is processed in turns


def should_use_wavefront(cell: Cell, x: Tensor, layers: int) -> bool:
    """Return whether wavefront execution is possible and profitable for this stack."""
    # streams first: the length of a compiled graph's input may be symbolic
    if layers == 1 or not can_use_streams(cell, x) or not host_keeps_up(cell):
        return False
    B, T, _ = x.shape
    return T >= 4 * CHUNK_STEPS and B * layers * max(cell.hidden_size, 128) ** 2 <= GPU_CAPACITY


def leaves_room(job: CellJob, kernel: str) -> bool:
    """Return whether the kernel of a layer leaves a part of the GPU to others."""
    return choose(job.cell, job.job, kernel).kernel.leaves_room


def run_wavefront(
    jobs: Sequence[CellJob], kernel: str, between: Callable[[Tensor], Tensor]
) -> tuple[Tensor, list[State]]:
    """Run the layers of a stack, from the first to the last.

    Args:
        jobs: One job for each layer; the input x (B, T, D) is that of the first.
        kernel: "auto", or a kernel's name.
        between: Applied to a layer's outputs before they enter the next layer, such as dropout.

    Returns:
        The outputs of the last layer (B, T, H), and the last state of every layer.
    """
    x, dtypes = jobs[0].job.x, [tuple(s.dtype for s in job.job.state) for job in jobs]
    size = x.shape[1]
    if all(leaves_room(job, kernel) for job in jobs):
        jobs = [replace(job, job=_promote_state(job.job)) for job in jobs]
        size = max(CHUNK_STEPS, -(-size // MAX_CHUNKS))
    outputs: list[Tensor] = []
    with assign_streams(jobs) as assigned:
        states = [job.job.state for _, job in assigned]
        for k, chunk in enumerate(x.split(size, 1)):
            y = chunk
            for i, (stream, job) in enumerate(assigned):
                with stream:
                    if i:
                        stream.wait_for(assigned[i - 1][0], y)
                        y = between(y)
                    part = job.job.take_part(y, states[i], k * size)
                    y, states[i] = run_job(job.cell, part, kernel, job.values)
            outputs.append(y)
    ends = [tuple(s.to(t) for s, t in zip(end, types, strict=True)) for end, types in zip(states, dtypes, strict=True)]
    return torch.cat(outputs, 1), ends


def _promote_state(job: ScanJob) -> ScanJob:
    """Return the job with its state in at least float32, the precision inside a kernel."""
    return replace(job, state=tuple(s.to(torch.promote_types(s.dtype, torch.float32)) for s in job.state))
