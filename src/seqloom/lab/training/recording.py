"""Steps of a training as CUDA graphs on a separate stream, so that many trainings run side by side on one GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


class RecordedSteps:
    """A stream, the steps that were recorded for it, and how far the host is ahead of it.

    Args:
        ahead: Most steps that are started and have not ended.
    """

    def __init__(self, device: torch.device, ahead: int) -> None:
        self.device, self.ahead = device, ahead
        self.stream = torch.cuda.Stream(device)
        self.stream.wait_stream(torch.cuda.current_stream(device))
        self.graphs: list[torch.cuda.CUDAGraph] = []
        self._events: list[torch.cuda.Event] = []

    def is_ready(self) -> bool:
        """Return whether the next step can be started without waiting for the GPU."""
        return len(self._events) < self.ahead or self._events[0].query()

    def run(self, *work: Callable[[], object]) -> None:
        """Start the work of one step on the stream, when the one `ahead` steps before has ended."""
        if len(self._events) >= self.ahead:
            self._events.pop(0).synchronize()
        with torch.cuda.stream(self.stream):
            for call in work:
                call()
            event = torch.cuda.Event()
            event.record()
        self._events.append(event)

    def record(self, steps: Sequence[Callable[[], object]], generators: Sequence[torch.Generator]) -> None:
        """Record a graph of each step, which share their memory; `graphs` replay them.

        Args:
            steps: Functions that make one step; each must have been called before.
            generators: The random generators that the steps draw from.
        """
        torch.cuda.synchronize(self.device)
        pool, graphs = torch.cuda.graph_pool_handle(), []
        for step in steps:
            graph = torch.cuda.CUDAGraph()
            for generator in generators:
                graph.register_generator_state(generator)
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                step()
            graphs.append(graph)
        self.graphs = graphs
