"""Passes whose launches are recorded once as a CUDA graph, and replayed on other tensors of the same shapes.

A short pass takes the GPU less time than its launches take the host. Its arguments are copied to memory at fixed
addresses, and its results from there: two launches and a replay instead of about thirty launches.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from seqloom.core.memory import empty_like
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.runtime.graphs import RecordedLaunches

Maybe = Tensor | None
Tree = TypeVar("Tree")  # a tensor, None, or a tuple, named tuple or list of trees
Launch = Callable[[Any], Any]  # maps one tree to another
_owners: deque[weakref.ref[Recorder]] = deque()  # recorders that keep a pass, the oldest first


class Recorder:
    """Run a pass; record it once it has run often enough to be worth it.

    Args:
        device: Where it runs.
        size: Bytes of its arguments, results and temporaries.
        share: It is recorded only if it needs at most 1 / `share` of the device's memory.
    """

    def __init__(self, device: torch.device, size: int, share: int = heuristics.RECORDED_PASS_SHARE) -> None:
        self.size = size
        self.most = _read_room(device) // share
        self.room = _read_room(device) // heuristics.RECORDED_SHARE
        self.key: Hashable = None
        self.runs = 0
        self.kept: RecordedPass | None = None

    def run(self, launch: Launch, key: Hashable, tensors: Any) -> Any:  # noqa: ANN401  # trees
        """Return the results of the pass, in memory that belongs to the caller.

        Args:
            launch: Runs the pass. Everything that it reads besides its arguments stays at the same addresses.
            key: What a recording depends on: the stream, torch's flags that change results, addresses of what the pass
                reads besides its arguments, and which arguments are None.
            tensors: The arguments: contiguous tensors and None, in tuples of any depth, as the result.
        """
        if self.size > self.most:
            return launch(tensors)
        if key != self.key:
            self.key, self.runs, self.kept = key, 0, None
        kept, self.kept = self.kept, None  # a concurrent pass of another thread must not use it
        if kept is None:
            self.runs += 1
            if self.runs < heuristics.RUNS_BEFORE_RECORDING:
                return launch(tensors)
            _make_room(self)
            try:
                kept = RecordedPass(launch, tensors)
            except torch.OutOfMemoryError:  # a recording holds memory; without it the pass may succeed
                self.most = 0
                return launch(tensors)
        found = kept.run(tensors)
        if self.key == key:
            self.kept = kept
        return found


def list_addresses(tensors: Sequence[Maybe]) -> tuple[int, ...]:
    """Return the addresses of tensors, for the key of a recording; 0 for None."""
    return tuple(0 if t is None else t.data_ptr() for t in tensors)


def _read_room(device: torch.device) -> int:
    """Return the memory of a GPU in bytes."""
    if device.type != "cuda":
        return 1 << 40
    return int(torch.cuda.get_device_properties(device).total_memory)


def _make_room(newest: Recorder) -> None:
    """Register a recorder as the newest that holds a pass; discard passes of the oldest if all need too much memory."""
    owners = [owner for ref in _owners if (owner := ref()) is not None and owner is not newest]
    while owners and sum(owner.size for owner in owners) + newest.size > newest.room:
        oldest = owners.pop(0)
        oldest.key, oldest.runs, oldest.kept = None, 0, None
    _owners.clear()
    _owners.extend(map(weakref.ref, (*owners, newest)))


class RecordedPass:
    """The memory and the recorded launches of a pass.

    Args:
        launch: Returns the results of the pass.
        tensors: Arguments like those of every later run.
    """

    def __init__(self, launch: Launch, tensors: Any) -> None:  # noqa: ANN401  # a tree
        with torch.inference_mode(False), torch.no_grad():  # later runs may be outside inference mode
            arguments = map_tensors(empty_like, tensors)

            def record() -> None:
                self.found = map_tensors(Tensor.contiguous, launch(arguments))

            self.arguments = list(list_tensors(arguments))
            self.graph = RecordedLaunches(record)

    def run(self, tensors: Any) -> Any:  # noqa: ANN401  # trees
        """Return the results of the pass for these arguments."""
        _copy(self.arguments, list(list_tensors(tensors)))
        self.graph.replay()
        copies = map_tensors(empty_like, self.found)
        _copy(list(list_tensors(copies)), list(list_tensors(self.found)))
        return copies


def map_tensors(f: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the same tree with `f` applied to each tensor."""
    if isinstance(tree, Tensor):
        return f(tree)  # type: ignore[return-value]
    if not isinstance(tree, (tuple, list)):
        return tree
    parts = [map_tensors(f, part) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def list_tensors(tree: object) -> Iterator[Tensor]:
    """Yield the tensors of a tree."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from list_tensors(part)


def _copy(to: Sequence[Tensor], source: Sequence[Tensor]) -> None:
    """Copy each tensor of `source` into that of `to`, with one launch per type."""
    for dtype in {t.dtype for t in to}:
        torch._foreach_copy_([t for t in to if t.dtype == dtype], [t for t in source if t.dtype == dtype])
