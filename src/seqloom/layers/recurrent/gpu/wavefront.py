"""Layers over a long sequence as a wave, on a GPU: each is at work on a piece of time, one behind the layer below.

A layer of few rows fills a fraction of a GPU, for a time that grows with the length. Its scan goes on from piece to
piece with the state of the last one, in full precision, so that the numbers are those of one scan.
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
from seqloom.layers.recurrent.gpu.streams import Work, beside, keeps_up, may_part

PIECE = 512  # steps: the host starts a piece in the time in which a GPU does fewer
PIECES = 8  # at most: each adds to the weights' gradients, in their type
ROOM = 1 << 24  # for rows times layers times units squared: above, layers take turns on a large GPU


def worth(cell: Cell, x: Tensor, layers: int) -> bool:
    """Whether so many layers of such cells over x, in one direction, may go and gain as a wave."""
    if layers == 1 or not may_part(cell, x) or not keeps_up(cell):  # first: a compiled graph takes every length
        return False
    B, T, _ = x.shape
    return T >= 4 * PIECE and B * layers * max(cell.hidden_size, 128) ** 2 <= ROOM


def leaves_room(work: Work, kernel: str) -> bool:
    """Return whether the kernel of a layer leaves a part of the GPU to others."""
    return choose(work.cell, work.job, kernel).kernel.leaves_room


def wave(works: Sequence[Work], kernel: str, between: Callable[[Tensor], Tensor]) -> tuple[Tensor, list[State]]:
    """The last layer's outputs, and every layer's last state. x of the first is that of all; `between` leads up."""
    x, carried = works[0].job.x, [tuple(s.dtype for s in work.job.state) for work in works]
    size = x.shape[1]
    if all(leaves_room(work, kernel) for work in works):
        works, size = [replace(work, job=_full(work.job)) for work in works], max(PIECE, -(-size // PIECES))
    outputs: list[Tensor] = []
    with beside(works) as placed:
        states = [work.job.state for _, work in placed]
        for k, piece in enumerate(x.split(size, 1)):
            y = piece
            for i, (place, work) in enumerate(placed):
                with place:
                    if i:
                        place.follow(placed[i - 1][0], y)
                        y = between(y)
                    job = _cut(work.job, y, states[i], k * size)
                    y, states[i] = run_job(work.cell, job, kernel, work.values)
            outputs.append(y)
    ends = [tuple(s.to(t) for s, t in zip(end, types, strict=True)) for end, types in zip(states, carried, strict=True)]
    return torch.cat(outputs, 1), ends


def _full(job: ScanJob) -> ScanJob:
    """With a state that is carried from piece to piece as it is inside one."""
    return replace(job, state=tuple(s.to(torch.promote_types(s.dtype, torch.float32)) for s in job.state))


def _cut(job: ScanJob, x: Tensor, state: State, begin: int) -> ScanJob:
    """The job of the steps from `begin` on whose input x is."""

    def part(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.narrow(1, begin, x.shape[1])

    left = None if job.lengths is None else (job.lengths - begin).clamp(0, x.shape[1])
    keep = tuple(k.narrow(1, begin, x.shape[1]) for k in job.keep)
    return replace(job, x=x, state=state, lengths=left, reset=part(job.reset), dt=part(job.dt), keep=keep)
