"""Passes whose launches are recorded once as a CUDA graph, and replayed on other tensors of the same shapes.

A short pass takes the GPU less time than its launches take the host. Its arguments are copied to memory at fixed
addresses, and its results from there: two launches and a replay instead of about thirty launches.
"""

from __future__ import annotations

import itertools
import weakref
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
_owners: weakref.WeakSet[Recorder] = weakref.WeakSet()  # recorders that keep a pass
_clock = itertools.count()  # counts the runs of all recorders


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
        self.used = 0  # the time of the last run
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
        self.used = next(_clock)
        kept, self.kept = self.kept, None  # a concurrent pass of another thread must not use it
        if kept is None:
            self.runs += 1
            if self.runs < heuristics.RUNS_BEFORE_RECORDING or not _make_room(self):
                return launch(tensors)
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


def _make_room(newest: Recorder) -> bool:
    """Return whether there is room for one more recorded pass, after discarding those that are no longer in use.

    A pass that still runs is kept: otherwise passes that take turns would discard each other in every round.
    """
    owners = sorted((owner for owner in _owners if owner is not newest), key=lambda owner: owner.used)
    excess = sum(owner.size for owner in owners) + newest.size - newest.room
    idle = newest.used - heuristics.RECORDED_IDLE * (1 + len(owners))
    for owner in owners:
        if excess <= 0:
            break
        if owner.used > idle:
            newest.runs = -heuristics.RECORDED_IDLE  # asks again later
            return False
        owner.key, owner.runs, owner.kept = None, 0, None
        _owners.discard(owner)
        excess -= owner.size
    _owners.add(newest)
    return True


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

            self.graph = RecordedLaunches(record)
            self.arguments = list_tensors(arguments)
            self.argument_kinds, self.result_kinds = map(_list_kinds, (self.arguments, list_tensors(self.found)))

    def run(self, tensors: Any) -> Any:  # noqa: ANN401  # trees
        """Return the results of the pass for these arguments."""
        _copy(self.arguments, list_tensors(tensors), self.argument_kinds)
        self.graph.replay()
        found = list_tensors(self.found)
        copies = list(map(empty_like, found))
        _copy(copies, found, self.result_kinds)
        return fill_tree(self.found, iter(copies))


def _list_kinds(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the indices of the tensors of each type."""
    return [[i for i, t in enumerate(tensors) if t.dtype == dtype] for dtype in {t.dtype for t in tensors}]


def _copy(to: Sequence[Tensor], source: Sequence[Tensor], kinds: list[list[int]]) -> None:
    """Copy each tensor of `source` into that of `to`, with one launch per type."""
    for places in kinds:
        torch._foreach_copy_([to[i] for i in places], [source[i] for i in places])


def map_tensors(f: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return the same tree with `f` applied to each tensor."""
    return fill_tree(tree, map(f, list_tensors(tree)))


def fill_tree(tree: Tree, tensors: Iterator[Tensor]) -> Tree:
    """Return the same tree with its tensors replaced by others, in order."""
    if isinstance(tree, Tensor):
        return next(tensors)  # type: ignore[return-value]
    if not isinstance(tree, (tuple, list)):
        return tree
    parts: list[Any] = [part if part is None else fill_tree(part, tensors) for part in tree]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def list_tensors(tree: object) -> list[Tensor]:
    """Return the tensors of a tree in the order in which `fill_tree` replaces them."""
    found: list[Tensor] = []
    _add_tensors(tree, found)
    return found


def _add_tensors(tree: object, found: list[Tensor]) -> None:
    if isinstance(tree, Tensor):
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            if part is not None:
                _add_tensors(part, found)
