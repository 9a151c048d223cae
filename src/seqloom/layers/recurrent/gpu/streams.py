"""Run the directions of a layer, or several layers, at the same time on CUDA streams."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.weights import weights
from seqloom.kernels.fused import why_not_fused

# Shortest sequence, in steps, for which the host starts two scans faster than a GPU runs them.
MIN_STEPS = {"attn_rnn": 128}
DEFAULT_MIN_STEPS = 1_024  # other cells, whose steps take half as long


@dataclass(frozen=True, eq=False)
class CellJob:
    """A scan job and the cell that runs it; `values` replace the cell's weights of the same name."""

    cell: Cell
    job: ScanJob
    values: dict[str, Tensor]


class StreamContext:
    """A context that runs its body on a stream; without a stream it does nothing."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._inside = torch.cuda.stream(self.stream)
            self._inside.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.stream is not None:
            self._inside.__exit__(kind, error, at)

    def wait_for(self, other: StreamContext, result: Tensor) -> None:
        """Make later work here wait for all work queued on the other stream, and let it read `result` from there."""
        if self.stream is not None and other.stream is not None:
            self.stream.wait_stream(other.stream)
            result.record_stream(self.stream)


@contextmanager
def assign_streams(jobs: Sequence[CellJob]) -> Iterator[list[tuple[StreamContext, CellJob]]]:
    """Give each of several independent jobs a stream; code after this context waits for all of them.

    One direction of a layer fills only a fraction of a GPU. The backward pass of a job runs on the same stream as its
    forward pass.
    """
    x = jobs[0].job.x
    if len(jobs) == 1 or not can_use_streams(jobs[0].cell, x):
        yield [(StreamContext(), job) for job in jobs]
        return
    here = torch.cuda.current_stream(x.device)
    others = [_stream(here.device_index, here.stream_id, i) for i in range(1, len(jobs))]
    passed = [pass_to_stream(job, other) for job, other in zip(jobs[1:], others, strict=True)]
    for other in others:
        other.wait_stream(here)
    try:
        yield [(StreamContext(s), job) for s, job in zip([here, *others], [jobs[0], *passed], strict=True)]
    finally:
        for other in others:
            here.wait_stream(other)


def can_use_streams(cell: Cell, x: Tensor) -> bool:
    """Return whether work on x may run on another stream and would be faster there.

    Compiled graphs and dispatch modes need one order of operations. Hooks on saved tensors, such as those of
    checkpoints, recompute them on whichever stream asks first.
    """
    return (
        x.is_cuda
        and not torch.compiler.is_compiling()
        and keeps_gpu_busy(cell, x.shape[1])
        and why_not_fused() is None
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    )


def keeps_gpu_busy(cell: Cell, steps: int) -> bool:
    """Return whether the host starts two scans of `steps` steps faster than a GPU runs them."""
    return steps >= MIN_STEPS.get(cell.name, DEFAULT_MIN_STEPS) or torch.cuda.is_current_stream_capturing()


def host_keeps_up(cell: Cell) -> bool:
    """Return whether the host starts many short scans as fast as they run; in a CUDA graph it does not start them."""
    return cell.name in MIN_STEPS or torch.cuda.is_current_stream_capturing()


def pass_to_stream(job: CellJob, stream: torch.cuda.Stream | None) -> CellJob:
    """Prepare a job for another stream; to be called on the stream of the rest of the graph.

    Tensors with a gradient, weights too, are replaced by views, through which the gradient returns to this stream.
    Otherwise a parameter's gradient would come from the other stream: torch would warn, and a captured CUDA graph
    would wait for work outside it.
    """

    def pass_tensor(t: Any) -> Any:  # noqa: ANN401  # returns the kind that it takes
        if isinstance(t, tuple):
            return tuple(map(pass_tensor, t))
        if not isinstance(t, Tensor):
            return t
        # A parameter outlives the backward pass.
        if stream is not None and t.is_cuda and not isinstance(t, nn.Parameter):
            t.record_stream(stream)
        return t.view_as(t) if t.requires_grad and torch.is_grad_enabled() else t

    scan = replace(job.job, **{field.name: pass_tensor(getattr(job.job, field.name)) for field in fields(ScanJob)})
    values = {name: pass_tensor(t) for name, t in (weights(job.cell) | job.values).items()}
    return replace(job, job=scan, values=values)


@cache
def _stream(device: int, _of: int, _number: int) -> torch.cuda.Stream:
    """Return a side stream of a stream; if two streams shared one, their layers would wait for each other."""
    return torch.cuda.Stream(device)
