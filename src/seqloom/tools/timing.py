"""How long one call takes, what memory it needs, and whose code it ran."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROUND = 0.05  # seconds in which a round calls a layer again and again; a longer call is made once
LIBRARIES = {"aten::_cudnn_rnn": "cuDNN", "aten::mkldnn_rnn_layer": "oneDNN"}

Run = Callable[[], None]


def time_call(run: Run, device: str) -> float:
    """Of a call in a round: the fastest on a CPU, the median between events on a GPU.

    The first call finds the caches as another layer left them. On a GPU calls follow each other as in a training, so a
    host that is slower than the GPU shows.
    """
    return _on_gpu(run) if device == "cuda" else _on_cpu(run)


def _on_cpu(run: Run) -> float:
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() < begun + ROUND:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _on_gpu(run: Run) -> float:
    run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    calls = int(ROUND / (time.perf_counter() - begun))  # not by the clock: the host of a graph runs seconds ahead of it
    marks = [_mark()]
    for _ in range(max(3, calls)):
        run()
        marks.append(_mark())
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks)) / 1e3


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def capture_graph(run: Run) -> Run | None:
    """The call as a CUDA graph, None where it cannot be one."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def peak_bytes(run: Run, device: str) -> int | None:
    """The most memory that a call needs on a GPU beyond what was there before it."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class Library(TorchDispatchMode):
    """Whose fused code is called."""

    name = "ATen"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.name = LIBRARIES.get(func.name(), self.name)
        return func(*args, **(kwargs or {}))
