"""A prepared call of compiled cells on a CPU: programs that were found and checked earlier.

What a step reads is compared in every call, as in `compile_cell`; only the search is skipped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
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
from seqloom.kernels.autograd import Call, run_prepared
from seqloom.kernels.compiled.kernel import Found, encode_plan
from seqloom.kernels.compiled.lean import LeanScan, why_not_lean
from seqloom.kernels.compiled.run import Compiled, CompiledScan
from seqloom.kernels.dispatch import Choice
from seqloom.kernels.fused import flatten_loop
from seqloom.kernels.stack import Stack


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
            self.lean = self._find_lean(found.code, stack)
        except Exception:
            if not plan.is_loaded:
                raise
            self.lean = None  # a program from disk does not fit; the call that needs it finds another one

    def _find_lean(self, compiled: Compiled, stack: Stack) -> LeanScan | None:
        """Return the lean pass for short calls in one direction; None if the cell has none."""
        encoded, many = encode_plan(compiled.plan), stack.B * stack.T
        pairs = [(compiled.infer, encoded[compiled.plan.infer]), (compiled.train, encoded[compiled.plan.train])]
        if stack.ways == 2 or len(stack.shape) == 2 or any(why_not_lean(*pair, many) for pair in pairs):
            return None
        lean = LeanScan(self.scan, (pairs[0][1], pairs[1][1]), not stack.is_batch_first)
        return lean if self._is_same(lean, stack) else None

    @torch.no_grad()
    def _is_same(self, lean: LeanScan, stack: Stack) -> bool:
        """Return whether a lean pass computes and saves what the programs do, which were checked against the loop."""
        weights = [w.detach() for w in read_tensors(self.cell, self.names).values()]
        if not weights or not are_contiguous(weights):
            return False
        draws = torch.Generator().manual_seed(0)
        shape = (*stack.shape[:-1], self.cell.input_size)
        x = torch.randn(*shape, generator=draws, dtype=weights[0].dtype, device="cpu")
        rows = x.transpose(0, 1) if lean.is_time_first else x
        start, lengths = self.cell.start(rows), torch.arange(stack.B, device="cpu") % (stack.T + 1)
        for train, many in itertools.product((False, True), (None, stack.T - lengths)):
            given = () if self.starts_from_zeros else start
            y, *last = self._list_results(lean, Call(x, given, weights, lengths=many, train=train))
            others = self._list_results(self.scan, Call(rows, start, weights, lengths=many, train=train))
            mine = [y.transpose(0, 1) if lean.is_time_first else y, *last]
            pairs = zip(mine, others, strict=True)
            if not all(torch.allclose(a, b, rtol=1e-5, atol=1e-6, equal_nan=True) for a, b in pairs):
                return False
        return True

    @staticmethod
    def _list_results(scan: CompiledScan, call: Call) -> list[Tensor]:
        """Return the outputs, the last states and what the backward pass reads."""
        results, saved = scan.forward(call)
        return [*results, *(() if saved is None else (saved.rows, *saved.states, *saved.values))]

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

    def run_lean(
        self, x: Tensor, state: Sequence[Tensor], own: Sequence[Tensor], lengths: Tensor | None, train: bool
    ) -> tuple[Tensor, ...] | None:
        """Return the outputs and the last states of x, in the layer's order; None if the cell has no lean form."""
        if self.lean is None:
            return None
        weights = self.read_weights(own)
        if self.places is None and not (are_contiguous(weights) and all(map(has_memory, weights))):
            return None
        if not state and not self.starts_from_zeros:
            state = self.cell.start(x.transpose(0, 1) if self.lean.is_time_first else x)
        return run_prepared(self.lean, Call(x, state, weights, lengths=lengths, train=train))


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
        parts = zip(stack.cells, stack.names, found, strict=True)
        self.cells = [_PreparedCell(*part, stack) for part in parts]

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
        if len(self.cells) == 1:
            try:
                result = self.cells[0].run_lean(x, [s.squeeze(0) for s in states], weights, lengths, train)
            except UnfitError:
                self.cells[0].found.is_unfit = True
                return None
            if result is not None:
                y, *end = result
                return y, end[0].unsqueeze(0) if len(end) == 1 else tuple(s.unsqueeze(0) for s in end)
        y = x.unsqueeze(0) if self.is_single else x if self.is_batch_first else x.transpose(0, 1)
        ends: list[Sequence[Tensor]] = []
        try:
            for begin in range(0, len(self.cells), self.ways):
                outputs = []
                for i in range(begin, begin + self.ways):
                    cell, rows = self.cells[i], y if i == begin else reverse_steps(zero_padding(y, lengths), lengths)
                    state = tuple(s[i].view(self.B, *s.shape[1 + (not self.is_single) :]) for s in states)
                    out, *end = cell.run(rows, state, weights, lengths, train)
                    outputs.append(out if i == begin else reverse_steps(out, lengths))
                    ends.append(end)
                y = outputs[0] if self.ways == 1 else torch.cat(outputs, -1)
        except UnfitError:  # a plan from disk does not fit; the general path finds another one
            cell.found.is_unfit = True
            return None
        if len(ends) == 1:
            last = ends[0] if self.is_single else [s.unsqueeze(0) for s in ends[0]]
        else:
            pairs = zip(zip(*ends, strict=True), self.h_shapes, strict=True)
            last = [torch.stack(part).view(shape) for part, shape in pairs]
        y = y.squeeze(0) if self.is_single else y if self.is_batch_first else y.transpose(0, 1).contiguous()
        return y, last[0] if len(last) == 1 else tuple(last)
