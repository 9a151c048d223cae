"""Measure the time and memory of a call, and which library ran it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

ROUND = 0.05  # seconds of repeated calls per round; a longer call runs once
LIBRARIES = {"aten::_cudnn_rnn": "cuDNN", "aten::mkldnn_rnn_layer": "oneDNN"}

Run = Callable[[], None]


def time_call(run: Run, device: str) -> float:
    """Return the seconds of a call: the fastest of a round on a CPU, the median between events on a GPU.

    The first call may find the caches filled by other code. On a GPU calls are queued back to back as in training, so
    the result includes the host's time if the host is slower than the GPU.
    """
    return _time_on_gpu(run) if device == "cuda" else _time_on_cpu(run)


def _time_on_cpu(run: Run) -> float:
    best, begun = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() < begun + ROUND:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best


def _time_on_gpu(run: Run) -> float:
    run()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    run()
    torch.cuda.synchronize()
    calls = int(ROUND / (time.perf_counter() - begun))  # a fixed number: the host may run seconds ahead of a graph
    events = [_record_event()]
    for _ in range(max(3, calls)):
        run()
        events.append(_record_event())
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events)) / 1e3


def _record_event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def capture_graph(run: Run) -> Run | None:
    """Capture the call as a CUDA graph and return its replay; None if it cannot be captured."""
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
    """Return the peak of the GPU memory that a call allocates; None on a CPU."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


class Library(TorchDispatchMode):
    """A mode that records which library's fused RNN is called."""

    name = "ATen"

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        self.name = LIBRARIES.get(func.name(), self.name)
        return func(*args, **(kwargs or {}))
