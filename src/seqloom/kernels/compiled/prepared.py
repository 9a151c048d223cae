"""A prepared call of compiled cells on a CPU: programs that were found and checked earlier.

What a step reads is compared in every call, as in `compile_cell`; only the search is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seqloom.compiler.compile import Watch
from seqloom.compiler.fingerprint import Items
from seqloom.compiler.plan import UnfitError
from seqloom.core.cell import Cell, State
from seqloom.core.checks import are_contiguous, has_memory
from seqloom.core.job import ScanJob, reverse_steps, zero_padding
from seqloom.core.weights import read_tensors
from seqloom.kernels.autograd import Call, Prepared, run_prepared
from seqloom.kernels.compiled.kernel import Found, encode_plan
from seqloom.kernels.compiled.passes import PassScan
from seqloom.kernels.compiled.run import Compiled, CompiledScan
from seqloom.kernels.cpu.cell_pass import UnsupportedPassError
from seqloom.kernels.dispatch import Choice
from seqloom.kernels.fused import flatten_loop
from seqloom.kernels.stack import Stack

# Largest difference that another order of sums may cause, relative to the largest value of a result.
CLOSE = {torch.float32: 1e-5, torch.float64: 1e-12}


def why_not_stack(choices: Sequence[Choice]) -> str | None:
    """Return why a stack of these kernels has no prepared call here; None if it has one."""
    for choice in choices:
        if not isinstance(choice.run, Found) or not isinstance(choice.run.code, Compiled):
            return "a cell of the stack has no compiled programs"
        if not choice.run.code.plan.projects:
            return "a cell's project is not a part of its programs"
    return None


class _PreparedCell:
    """One cell of a stack.

    Args:
        cell: The cell, whose `project` is part of its programs.
        names: The indices of its weights among those of the layer.
        found: Its programs.
        stack: The form of the input.
    """

    def __init__(self, cell: Cell, names: Mapping[str, int], found: Found, stack: Stack) -> None:
        assert isinstance(found.code, Compiled)
        self.cell, self.found, plan = cell, found, found.code.plan
        self.watch, self.names = Watch(cell, plan), tuple(plan.weights)
        # indices of the stack's weights; None if the cell reads a buffer as one
        self.places = [names[name] for name in self.names] if names.keys() >= set(self.names) else None
        self.scan = CompiledScan(found.code, self.names, None, self._find_loop)
        own, kind = cell.__dict__, type(cell)
        self.starts_from_zeros = (
            kind.initial_state is Cell.initial_state
            and kind.start is Cell.start
            and not own.get("learned_states")
            and {"start", "initial_state"}.isdisjoint(own)
        )
        try:
            self.passes = self._find_passes(found.code, stack)
        except UnsupportedPassError:
            self.passes = None
        except Exception:
            if not plan.is_loaded:
                raise
            self.passes = None  # a program from disk does not fit; the call that needs it finds another one

    def _find_passes(self, compiled: Compiled, stack: Stack) -> PassScan | None:
        """Return the passes for short calls in one direction, given the cell as a stack; None if it has none."""
        if stack.ways == 2:
            return None
        encoded, plan = encode_plan(compiled.plan), compiled.plan
        weights = [w.detach() for w in read_tensors(self.cell, self.names).values()]
        if not weights or not are_contiguous(weights):
            return None
        passes = PassScan(self.scan, (encoded[plan.infer], encoded[plan.train], encoded[plan.reverse]), weights, stack)
        return passes if self._is_same(passes, weights, stack) else None

    @torch.no_grad()
    def _is_same(self, passes: PassScan, weights: Sequence[Tensor], stack: Stack) -> bool:
        """Return whether passes compute what the programs do, which were checked against the loop."""
        draws = torch.Generator().manual_seed(0)

        def draw(shape: Sequence[int]) -> Tensor:
            return torch.randn(*shape, generator=draws, dtype=weights[0].dtype, device="cpu")

        def turn(t: Tensor) -> Tensor:
            """Convert an input or an output from the layer's form to (B, T, ...)."""
            return t.view(stack.T, stack.B, -1).transpose(0, 1) if passes.is_time_first else t

        x = draw((*stack.shape[:-1], self.cell.input_size))
        lengths = stack.T - torch.arange(stack.B, device="cpu") % (stack.T + 1)
        start = [s + draw(s.shape) for s in self.cell.start(turn(x))]
        given = [s.view(like.shape) for s, like in zip(start, passes.state_likes, strict=True)]
        pulls = [draw(like.shape) for like in (passes.y_like, *passes.state_likes)]
        theirs = [turn(pulls[0]), *(d.view(s.shape) for d, s in zip(pulls[1:], start, strict=True))]
        for train, many in itertools.product((False, True), (None, lengths)):
            mine = self._list_results(passes, Call(x, given, weights, lengths=many, train=train), pulls, turn)
            others = self._list_results(self.scan, Call(turn(x), start, weights, lengths=many, train=train), theirs)
            if not all(map(_are_close, mine, others)):
                return False
        return True

    @staticmethod
    def _list_results(
        scan: Prepared, call: Call, pulls: Sequence[Tensor], turn: Callable[[Tensor], Tensor] = Tensor.detach
    ) -> list[Any]:
        """Return the outputs, the last states and all gradients."""
        (y, *last), saved = scan.forward(call)
        if saved is None:
            return [turn(y), *last]
        found = scan.backward(call, saved, pulls, call.name([True] * len(call.tensors)))
        return [turn(y), *last, found.x if found.x is None else turn(found.x), *found.states, *found.weights]

    def _find_loop(self, call: Call) -> Any:  # noqa: ANN401  # a function of tensors
        state = call.states or self.cell.start(call.x)
        return flatten_loop(self.cell, ScanJob(call.x, tuple(state), call.lengths), self.names, len(call.states))

    def read_weights(self, own: Sequence[Tensor]) -> list[Tensor]:
        """Return the cell's weights, given those of the layer."""
        if self.places is None:
            return list(read_tensors(self.cell, self.names).values())
        return [own[place] for place in self.places]

    def run(
        self, x: Tensor, state: State, own: Sequence[Tensor], lengths: Tensor | None, train: bool
    ) -> tuple[Tensor, ...]:
        """Return the outputs and the last states of x (B, T, D); `own`: all weights of the layer."""
        call = Call(x, state or self.cell.start(x), self.read_weights(own), lengths=lengths, train=train)
        return run_prepared(self.scan, call)

    def run_passes(
        self, x: Tensor, state: Sequence[Tensor], own: Sequence[Tensor], lengths: Tensor | None, train: bool
    ) -> tuple[Tensor, ...] | None:
        """Return the outputs and the last states of x, in the layer's form; None if the cell has no passes."""
        if self.passes is None:
            return None
        weights = self.read_weights(own)
        if self.places is None and not (are_contiguous(weights) and all(map(has_memory, weights))):
            return None
        if not state and not self.starts_from_zeros:
            rows = x.unsqueeze(0) if x.dim() == 2 else x.transpose(0, 1) if self.passes.is_time_first else x
            state = [s.view(like.shape) for s, like in zip(self.cell.start(rows), self.passes.state_likes, strict=True)]
        return run_prepared(self.passes, Call(x, state, weights, lengths=lengths, train=train))


def _are_close(mine: Tensor | None, other: Tensor | None) -> bool:
    """Return whether a result of passes is that of the programs, but for the order of sums."""
    if mine is None or other is None:
        return mine is other
    most = float(other.nan_to_num(0, 0, 0).abs().max()) * CLOSE[mine.dtype]
    return torch.allclose(mine, other.reshape(mine.shape), rtol=0, atol=most, equal_nan=True)


class CompiledStack:
    """Run a stack of compiled cells over inputs of one shape.

    Args:
        stack: The cells, and the form of the input.
        choices: What was found for each cell.
    """

    backend = "compiled"

    def __init__(self, stack: Stack, choices: Sequence[Choice]) -> None:
        self.h_shapes, self.B, self.T, self.ways = stack.state_shapes, stack.B, stack.T, stack.ways
        self.is_single, self.is_batch_first = len(stack.shape) == 2, stack.is_batch_first
        found = [choice.run for choice in choices if isinstance(choice.run, Found)]
        self.cells = []
        for cell, names, code in zip(stack.cells, stack.names, found, strict=True):
            shape = torch.Size((*stack.shape[:-1], cell.input_size))
            alone = replace(stack, cells=[cell], names=[names], shape=shape)
            self.cells.append(_PreparedCell(cell, names, code, alone))

    @property
    def dictionaries(self) -> list[Items] | None:
        """The dictionaries whose items represent what steps read; None if one of these values is mutable."""
        snapshots = [cell.watch.snapshot for cell in self.cells]
        return [d for s in snapshots for d in s.dictionaries] if all(s.is_possible for s in snapshots) else None

    def run_compared(self, *arguments: Any) -> tuple[Tensor, Any] | None:  # noqa: ANN401  # those of `run`
        """Do what `run` does if the items of `dictionaries` are known to be unchanged."""
        return self._run(*arguments) if all(cell.watch.holds_beside() for cell in self.cells) else None

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],  # each cell reads its own
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any] | None:
        """Run the stack; the arguments and results are those of `PreparedStack.run`.

        Returns None if the stack must be prepared again, because something that a step reads has changed.
        """
        if not all(cell.watch.holds() for cell in self.cells):
            return None
        return self._run(x, states, weights, train, lengths)

    def _run_passes(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool, lengths: Tensor | None
    ) -> tuple[Tensor, Any] | None:
        """Run one cell after the other in as few calls of the engine as possible; None if a cell cannot."""
        ends = []
        for i, cell in enumerate(self.cells):
            before = states if len(self.cells) == 1 else [s.narrow(0, i, 1) for s in states]
            result = cell.run_passes(x, before, weights, lengths, train)
            if result is None:
                return None
            x, *end = result
            ends.append(end)
        last = ends[0] if len(ends) == 1 else [torch.cat(part) for part in zip(*ends, strict=True)]
        return x, last[0] if len(last) == 1 else tuple(last)

    def _run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any] | None:
        if any(cell.found.is_unfit for cell in self.cells):
            return None
        given = x, states, weights, train, lengths
        try:
            return (self._run_passes(*given) if self.ways == 1 else None) or self._run_programs(*given)
        except UnfitError:  # a plan from disk does not fit; the general path finds another one
            for cell in self.cells:
                cell.found.is_unfit = True
            return None

    def _run_programs(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool, lengths: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Run the programs of all cells, with torch between them."""
        y = x.unsqueeze(0) if self.is_single else x if self.is_batch_first else x.transpose(0, 1)
        ends: list[Sequence[Tensor]] = []
        for begin in range(0, len(self.cells), self.ways):
            outputs = []
            for i in range(begin, begin + self.ways):
                cell, rows = self.cells[i], y if i == begin else reverse_steps(zero_padding(y, lengths), lengths)
                state = tuple(s[i].view(self.B, *s.shape[1 + (not self.is_single) :]) for s in states)
                out, *end = cell.run(rows, state, weights, lengths, train)
                outputs.append(out if i == begin else reverse_steps(out, lengths))
                ends.append(end)
            y = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        if len(ends) == 1:
            last = ends[0] if self.is_single else [s.unsqueeze(0) for s in ends[0]]
        else:
            pairs = zip(zip(*ends, strict=True), self.h_shapes, strict=True)
            last = [torch.stack(part).view(shape) for part, shape in pairs]
        y = y.squeeze(0) if self.is_single else y if self.is_batch_first else y.transpose(0, 1).contiguous()
        return y, last[0] if len(last) == 1 else tuple(last)
