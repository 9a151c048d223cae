"""A long sequence as chunks that run side by side, as rows of one batch.

Every chunk starts from a guess of its first state. A pass runs all chunks; then the state at the end of each chunk
becomes the first state of the next one, until both agree. A recurrence that forgets a wrong state within a chunk needs
two passes. One that never forgets would need as many as there are chunks, and runs as a whole instead. The backward
pass does the same with the gradients of the states. See docs/theory/parallel.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import truediv

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, clone_part
from seqloom.core.precision import autocast_dtype, find_product_type
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import Call, Gradients, Maybe, run_prepared
from seqloom.kernels.dispatch import choose
from seqloom.kernels.fused import Graph, SavedGraph, differentiate, differentiate_loop, flatten_loop
from seqloom.kernels.parallel.experience import recall
from seqloom.kernels.registry import Run


def can_divide(state: State) -> bool:
    """Return whether states of this kind can be compared."""
    return bool(state) and not any(s.is_complex() for s in state)


def run(cell: Cell, job: ScanJob, kernel: str, steps: int, is_auto: bool) -> tuple[Tensor, State]:
    """Return the outputs (B, T, H) and the last state.

    Args:
        cell: The cell, with weights in plain memory.
        job: Its input.
        kernel: "auto", or a kernel's name.
        steps: Steps of a chunk. What remains at the end of the sequence runs after the chunks.
        is_auto: Whether passes that do not agree may take at most half of the time of the whole sequence.
    """
    T = job.x.shape[1]
    whole = T - T % steps
    first = job if whole == T else job.take_part(job.x[:, :whole], job.state, 0)
    own = weights(cell)
    call = Call(first.x, first.state, list(own.values()), dt=first.dt)
    call.train = call.needs_gradient()
    most = heuristics.PARALLEL_MOST_PASSES
    most = max(2, min(most, whole // steps // 4)) if is_auto else most
    y, *state = run_prepared(Chunks(cell, first, kernel, steps, find_tolerance(first), most), call)
    if whole == T:
        return y, tuple(state)
    last = job.take_part(job.x[:, whole:], tuple(state), whole)
    rest, end = choose(cell, last, kernel).run(cell, last)
    return torch.cat([y, rest.to(y.dtype)], 1), end


def find_tolerance(job: ScanJob) -> float:
    """Return the largest difference between the end of a chunk and the next start, in units of the largest state."""
    dtype = find_product_type(job.x)
    return heuristics.PARALLEL_ROUNDINGS[dtype] * torch.finfo(dtype).eps


def measure_defect(before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[float, float]:
    """Compare the first states of all chunks, (B, C, ...) each, in two passes.

    Returns:
        The largest difference, and the largest sum of differences over all chunks up to one, which would be its error
        if nothing were forgotten. Both are in units of the largest value.
    """
    precise = [b.to(torch.promote_types(b.dtype, torch.float32)) for b in after]
    differences = [b - a for a, b in zip(before, precise, strict=True)]
    sums = [d.cumsum(1) for d in differences]
    norms = torch.stack(torch._foreach_norm([*differences, *sums, *precise], math.inf)).view(3, -1).tolist()
    if any(map(math.isnan, chain(*norms))):
        return math.nan, math.nan
    scales = [max(size, torch.finfo(torch.float32).tiny) for size in norms[2]]
    defect, total = (max(map(truediv, row, scales)) for row in norms[:2])
    return defect, total


@dataclass
class ChunkedGraph(Graph):
    """The last forward pass.

    Attributes:
        is_cut: Whether it ran in chunks.
    """

    is_cut: bool


@dataclass
class Chunks:
    """A job whose rows are divided into chunks; see `Prepared`.

    Attributes:
        cell: The cell.
        job: The job; its length is a multiple of `steps`.
        kernel: "auto", or a kernel's name.
        steps: Steps of a chunk.
        tolerance: What `find_tolerance` returns.
        most: Passes after which it runs as a whole.
    """

    cell: Cell
    job: ScanJob
    kernel: str
    steps: int
    tolerance: float
    most: int

    def __post_init__(self) -> None:
        self.B, self.C = self.job.x.shape[0], self.job.x.shape[1] // self.steps
        self.names = list(weights(self.cell))
        self.known = recall(self.cell)
        self.amp = autocast_dtype(self.job.x.device.type)  # a backward pass runs without it
        self.codes: dict[tuple[bool, bool], Run] = {}  # the kernel by whether gradients follow and chunks are run

    @cached_property
    def left(self) -> Tensor | None:
        """The real steps of each chunk, (B, C); None if there is no padding."""
        lengths = self.job.lengths
        if lengths is None:
            return None
        begin = torch.arange(self.C, device=lengths.device) * self.steps
        return (lengths.unsqueeze(1) - begin).clamp(0, self.steps)

    @cached_property
    def rows(self) -> ScanJob:
        """The job with chunks as rows."""
        job, cut = self.job, self._cut
        return replace(
            job,
            x=cut(job.x),
            dt=None if job.dt is None else cut(job.dt),
            lengths=None if self.left is None else self.left.flatten(),
            reset=None if job.reset is None else cut(job.reset),
            mask=None if job.mask is None else job.mask.repeat_interleave(self.C, 0),
            keep=tuple(map(cut, job.keep)),
        )

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], SavedGraph]:
        """Return the outputs and the last states, and the graph of the last pass."""
        guess = [s.unsqueeze(1).expand(s.shape[0], self.C, *s.shape[1:]) for s in call.states]
        before = 1.0
        for passes in range(1, self.most + 1):
            train = call.train and passes >= self.known.passes
            graph = self._run(call, guess, train)
            y, *ends = (t.detach().unflatten(0, (self.B, self.C)) for t in graph.outputs)
            after = [self._move_on(end, s) for end, s in zip(ends, call.states, strict=True)]
            if self._is_early(passes, self.known.passes):
                guess = after
                continue
            defect, total = measure_defect(guess, after)
            if self._agrees(defect, total):
                if train != call.train:
                    graph = self._run(call, after, call.train)
                    y, *ends = (t.detach().unflatten(0, (self.B, self.C)) for t in graph.outputs)
                self.known.note_success(self.steps, passes, defect)
                return (y.flatten(1, 2), *map(self._take_last, ends)), SavedGraph(graph)
            if not defect <= before / 2:
                break
            guess, before = after, defect
        self.known.note_failure(self.steps, passes, defect, self.C)
        graph = self._run(call, None, call.train)
        return tuple(t.detach() for t in graph.outputs), SavedGraph(graph)

    def backward(self, call: Call, saved: SavedGraph, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients, after as many passes as the gradients of the states need to agree."""
        graph, count = saved.graph, len(call.states)
        if not graph.is_cut:
            return call.name(differentiate(graph.leaves, graph.outputs, grads, keep=True, again=False))
        dy = None if grads[0] is None else self._cut(grads[0])
        given = [self._place_last(d, s) for d, s in zip(grads[1:], call.states, strict=True)]
        guess, before = given, 1.0
        for passes in range(1, self.most + 1):
            pulls = [dy, *(g.flatten(0, 1) for g in guess)]
            dx, *rest = differentiate(graph.leaves, graph.outputs, pulls, keep=True, again=False)
            starts = [
                torch.zeros_like(g) if d is None else d.unflatten(0, (self.B, self.C))
                for g, d in zip(guess, rest[:count], strict=True)
            ]
            after = [self._move_back(d) + g for d, g in zip(starts, given, strict=True)]
            if self._is_early(passes, self.known.back):
                guess = after
                continue
            defect, total = measure_defect(guess, after)
            if self._agrees(defect, total):
                self.known.back = passes
                rest[:count] = [d[:, 0] for d in starts]
                over_time = [dx, *rest[count + len(call.weights) :]]
                dx, *spans = (None if d is None else self._join(d) for d in over_time)
                return call.name([dx, *rest[: count + len(call.weights)], *spans])
            if not defect <= before / 2:
                break
            guess, before = after, defect
        self.known.note_failure(self.steps, passes, defect, self.C)
        with torch.autocast(call.x.device.type, self.amp, enabled=self.amp is not None):
            graph = self._run(call, None, train=True)
        return call.name(differentiate(graph.leaves, graph.outputs, grads, keep=False, again=False))

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients with a graph, by the reference loop over the whole sequence."""
        return differentiate_loop(flatten_loop(self.cell, self.job, self.names), call, grads)

    def _run(self, call: Call, guess: Sequence[Tensor] | None, train: bool) -> ChunkedGraph:
        """Run all chunks from first states (B, C, ...), or the whole sequence if there are none."""
        if guess is None:
            job, states = self.job, [s.detach() for s in call.states]
        else:
            job, states = self.rows, [g.detach().flatten(0, 1).contiguous() for g in guess]
        spans = [] if job.dt is None or call.dt is None else [_follow(job.dt, call.dt, train)]
        x, own = _follow(job.x, call.x, train), [_follow(w, w, train) for w in call.weights]
        if train:
            for leaf, s in zip(states, call.states, strict=True):
                leaf.requires_grad_(leaf.is_floating_point() and (guess is not None or s.requires_grad))
        view = bind_weights(self.cell, dict(zip(self.names, own, strict=True)))
        view.handle = self.cell.handle
        one = replace(job, x=x, state=tuple(states), dt=spans[0] if spans else None)
        with torch.set_grad_enabled(train):
            form = train, guess is None
            if form not in self.codes:
                self.codes[form] = choose(view, one, self.kernel).run
            y, ends = self.codes[form](view, one)
        return ChunkedGraph([x, *states, *own, *spans], (y, *ends), guess is not None)

    def _is_early(self, passes: int, usual: int) -> bool:
        """Return whether chunks rarely agree after so few passes: the host waits for a difference to read it."""
        return passes < min(self.most, max(2, usual - 1))

    def _agrees(self, defect: float, total: float) -> bool:
        return defect <= self.tolerance and total <= heuristics.PARALLEL_SUM * self.tolerance

    def _cut(self, t: Tensor) -> Tensor:
        """Return a tensor (B, T, ...) as rows (B * C, steps, ...)."""
        return t.unflatten(1, (self.C, self.steps)).flatten(0, 1)

    def _join(self, t: Tensor) -> Tensor:
        """Return rows (B * C, steps, ...) as a tensor (B, T, ...)."""
        return t.unflatten(0, (self.B, self.C)).flatten(1, 2)

    def _move_on(self, ends: Tensor, first: Tensor) -> Tensor:
        """Return the first states of the next pass: the ends (B, C, ...), each moved on to the next chunk."""
        first = first.unsqueeze(1).to(ends.dtype)
        return self._clear(torch.cat([first, ends[:, :-1]], 1), first)

    def _move_back(self, starts: Tensor) -> Tensor:
        """Return the gradients of the ends: those of the first states (B, C, ...), each moved to the chunk before."""
        none = torch.zeros_like(starts[:, :1])
        return self._clear(torch.cat([starts[:, 1:], none], 1), none)

    def _clear(self, t: Tensor, value: Tensor) -> Tensor:
        """Replace the entries of a tensor (B, C, ...) for chunks without real steps by a value."""
        if self.left is None:
            return t
        return torch.where((self.left > 0)[(..., *(None,) * (t.dim() - 2))], t, value)

    @cached_property
    def _last(self) -> tuple[Tensor, Tensor] | tuple[slice, int]:
        """The index of the last chunk with a real step of each row; of the first one if it has none."""
        if self.left is None:
            return slice(None), -1
        return torch.arange(self.B, device=self.left.device), ((self.left > 0).sum(1) - 1).clamp_min(0)

    def _take_last(self, ends: Tensor) -> Tensor:
        """Return the last state of every row from the ends (B, C, ...) of its chunks."""
        return clone_part(ends[self._last])

    def _place_last(self, d: Maybe, state: Tensor) -> Tensor:
        """Return the gradients of the ends (B, C, ...) of all chunks from those of the last states."""
        placed = state.new_zeros(self.B, self.C, *state.shape[1:])
        if d is not None:
            placed[self._last] = d
        return placed


def _follow(t: Tensor, source: Tensor, train: bool) -> Tensor:
    """Return the values of a tensor as a leaf of a new graph that wants a gradient if `source` does."""
    return t.detach().requires_grad_(train and source.requires_grad)
