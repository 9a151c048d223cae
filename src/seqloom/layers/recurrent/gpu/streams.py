"""Work that runs beside other work on a GPU: directions of a layer, or layers, on streams of their own."""

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

LONG = {"attn_rnn": 128}  # steps of a cell below which the host takes longer to start two scans than a GPU to run them
LONGER = 1_024  # of the others: theirs are half as long


@dataclass(frozen=True, eq=False)
class Work:
    """A job and the cell that does it; `values` stand in for weights of the same name."""

    cell: Cell
    job: ScanJob
    values: dict[str, Tensor]


class Place:
    """A context whose work goes to a stream; to none in particular where there is none."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self._inside = torch.cuda.stream(self.stream)
            self._inside.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.stream is not None:
            self._inside.__exit__(kind, error, at)

    def follow(self, place: Place, made: Tensor) -> None:
        """What comes here from now on waits for all that was begun there, and reads what was made there."""
        if self.stream is not None and place.stream is not None:
            self.stream.wait_stream(place.stream)
            made.record_stream(self.stream)


@contextmanager
def beside(works: Sequence[Work]) -> Iterator[list[tuple[Place, Work]]]:
    """Places for works that do not wait for each other; what comes after this context waits for all of them.

    One direction of a layer fills a fraction of a GPU. A backward runs where its forward did, so it gains too.
    """
    x = works[0].job.x
    if len(works) == 1 or not may_part(works[0].cell, x):
        yield [(Place(), work) for work in works]
        return
    here = torch.cuda.current_stream(x.device)
    others = [_stream(here.device_index, here.stream_id, i) for i in range(1, len(works))]
    lent = [lend(work, other) for work, other in zip(works[1:], others, strict=True)]
    for other in others:
        other.wait_stream(here)
    try:
        yield [(Place(here), works[0]), *((Place(s), work) for s, work in zip(others, lent, strict=True))]
    finally:
        for other in others:
            here.wait_stream(other)


def may_part(cell: Cell, x: Tensor) -> bool:
    """Whether work on x may leave its stream, and gains by it: a compiled graph and a mode want to see one order.

    Hooks on what is saved for a backward may make it anew (checkpoints do), on the stream of whoever asks first.
    """
    return (
        x.is_cuda
        and not torch.compiler.is_compiling()
        and (x.shape[1] >= LONG.get(cell.name, LONGER) or torch.cuda.is_current_stream_capturing())
        and why_not_fused() is None
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    )


def keeps_up(cell: Cell) -> bool:
    """Whether the host can start many short scans of it as fast as they run; what is recorded starts by itself."""
    return cell.name in LONG or torch.cuda.is_current_stream_capturing()


def lend(work: Work, stream: torch.cuda.Stream | None) -> Work:
    """The work for another stream to do, called on the one that the rest of the graph is on.

    Views stand in for what has a gradient, weights too: it comes back to this stream through them. A parameter
    whose gradient came from elsewhere would make torch warn, and a recorded graph wait for what is not in it.
    """

    def lent(t: Any) -> Any:
        if isinstance(t, tuple):
            return tuple(map(lent, t))
        if not isinstance(t, Tensor):
            return t
        if stream is not None and t.is_cuda and not isinstance(t, nn.Parameter):  # which lives longer than a backward
            t.record_stream(stream)
        return t.view_as(t) if t.requires_grad and torch.is_grad_enabled() else t

    job = replace(work.job, **{field.name: lent(getattr(work.job, field.name)) for field in fields(ScanJob)})
    return replace(work, job=job, values={name: lent(t) for name, t in (weights(work.cell) | work.values).items()})


@cache
def _stream(device: int, _of: int, _number: int) -> torch.cuda.Stream:
    """For each stream its own, or layers on different streams would wait for each other."""
    return torch.cuda.Stream(device)
