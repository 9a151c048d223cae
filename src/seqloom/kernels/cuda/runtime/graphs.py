"""Many small launches recorded once as a CUDA graph, and run again as one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar, cast

import torch

KEPT = 16  # graphs of different shapes; the one that was used longest ago goes first


class Recorded(Protocol):
    """Work on memory of its own, always the same launches."""

    def launch(self) -> None: ...


R = TypeVar("R", bound=Recorded)
_kept: OrderedDict[Hashable, tuple[Any, torch.cuda.CUDAGraph | None]] = OrderedDict()


def recorded(key: Hashable, make: Callable[[], R]) -> tuple[R, Callable[[], None]]:
    """The work of this key, and a function that does it.

    Inside a person's own capture it is launched as it is, and becomes a part of theirs.
    """
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
    key = (key, stream)
    if key not in _kept:
        _kept[key] = make(), None
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    work, graph = _kept[key]
    if stream is None or torch.cuda.is_current_stream_capturing():
        return work, work.launch
    if graph is None:
        graph = _capture(work)
        _kept[key] = work, graph
    return cast(R, work), graph.replay


def _capture(work: Recorded) -> torch.cuda.CUDAGraph:
    work.launch()  # once for real: compilers run, libraries make their plans
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        work.launch()
    return graph
