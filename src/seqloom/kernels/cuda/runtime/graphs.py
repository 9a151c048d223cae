"""Record many small launches once as a CUDA graph, and replay them as one."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeVar, cast

import torch

from seqloom.core.precision import numeric_flags
from seqloom.kernels import heuristics


class Work(Protocol):
    """Launches that never change, on memory that the object owns."""

    def launch(self) -> None: ...


W = TypeVar("W", bound=Work)
_cache: OrderedDict[Hashable, tuple[Any, torch.cuda.CUDAGraph | None]] = OrderedDict()  # least recently used first


# Each `Work` owns memory, and all recordings share a stream: one thread at a time uses them.
_lock = threading.RLock()


@contextmanager
def record(key: Hashable, make: Callable[[], W]) -> Iterator[tuple[W, Callable[[], None]]]:
    """Provide the work of this key, created and recorded if it is new, and a function that runs it.

    Other threads wait until the end of the block, which writes the work's memory, runs it and reads its results. A
    recording repeats the products that torch chose under its flags (tf32, reduced sums, deterministic, autocast), so
    other flags require another recording. While the caller captures a graph, the work is launched as it is and becomes
    part of that graph.
    """
    with _lock:
        yield _find_work(key, make)


def _find_work(key: Hashable, make: Callable[[], W]) -> tuple[W, Callable[[], None]]:
    stream = torch.cuda.current_stream() if torch.cuda.is_available() else None
    key = (key, stream, numeric_flags())
    if key not in _cache:
        _cache[key] = make(), None
    _cache.move_to_end(key)
    work, graph = _cache[key]
    if stream is not None and torch.cuda.is_current_stream_capturing():
        return work, work.launch  # and nothing is discarded, since freeing a graph would end the capture
    while len(_cache) > heuristics.GRAPHS_KEPT:
        _cache.popitem(last=False)
    if stream is None:
        return work, work.launch
    if graph is None:
        graph = _capture(work)
        _cache[key] = work, graph
    return cast(W, work), graph.replay


def _capture(work: Work) -> torch.cuda.CUDAGraph:
    work.launch()  # run once before the recording, so that compilers run and libraries initialise
    return _record_launches(work.launch)


def _record_launches(launch: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record launches as `torch.cuda.graph` does, but without emptying torch's cache of free memory."""
    before = torch.cuda.current_stream()
    graph, stream = torch.cuda.CUDAGraph(), _find_side_stream(torch.cuda.current_device())
    with _lock, _pause_collection(), torch.cuda.stream(stream):
        stream.wait_stream(before)
        torch.cuda.current_blas_handle()  # each thread has its own, which cannot be created during a capture
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
    return graph


@contextmanager
def _pause_collection() -> Iterator[None]:
    """Keep the garbage collector from freeing a CUDA graph during a capture, which would end the capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def _find_side_stream(_device: int) -> torch.cuda.Stream:
    """Return the one stream on which launches on a device are recorded: libraries allocate a workspace for each."""
    return torch.cuda.Stream()


class RecordedLaunches:
    """A CUDA graph of launches, which are not executed while they are recorded.

    Args:
        launch: Performs the launches.
    """

    graph: torch.cuda.CUDAGraph | None = None

    def __init__(self, launch: Callable[[], None]) -> None:
        _discarded.clear()
        self.graph = _record_launches(launch)
        self.replay = self.graph.replay

    def __del__(self) -> None:
        if self.graph is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            _discarded.append(self.graph)  # freeing it now would end the capture


_discarded: list[torch.cuda.CUDAGraph] = []  # freed before the next recording
