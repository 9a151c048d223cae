"""The three programs of a plan, with what torch computes before and after each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seqloom.compiler.evaluation import VIEWS, Evaluator, Step, evaluate
from seqloom.compiler.ir import Buffer, Place
from seqloom.compiler.plan import BufferMemory, Plan, Scan, UnfitError, Value
from seqloom.core.memory import new_empty
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.compiled.validation import Verdicts
from seqloom.kernels.cpu.machine import is_transposed

RunProgram = Callable[[Scan, Sequence[Any], Packing], None]  # tensors; None for values that live within one step


class Stages:
    """The programs of a plan, ready to run.

    Args:
        plan: The plan.
        run_program: Runs one of its programs on a device.
        is_direct: Whether `run_program` reads transposed weights.
        allocate: Returns memory like a tensor (first argument) and of a shape (the others); None if torch allocates it.
    """

    def __init__(
        self,
        plan: Plan,
        run_program: RunProgram,
        is_direct: bool = False,
        allocate: Callable[..., Tensor] | None = None,
    ) -> None:
        self.plan, self.run_program, self.is_direct, self.given = plan, run_program, is_direct, allocate
        self.evaluator = Evaluator(plan)
        self.leaves = self._find_leaves()
        after = {n for nodes in plan.after for n in nodes}
        inputs = {n for n in self.leaves if n not in (plan.inputs["dy"], *self._dafter())}
        memory = zip(plan.train.program.buffers, plan.train.memory, strict=True)
        self.saved = [m.node for b, m in memory if m.kind == "stored" and b.place is Place.TIME]
        ends = (plan.results["y"],)
        self.infer = self.prepare(plan.infer, inputs, after, ends)
        self.train = self.prepare(plan.train, inputs, after, ends)
        self.known_in_reverse = {*self.leaves, *after, *self.saved}
        self.saved += self._find_reused()
        self.known_in_reverse |= set(self.saved)
        self.reverse: dict[tuple[int, ...], Stage] = {}  # by the requested gradients
        self.prepare_reverse([name for name in plan.results if name != "y"])  # any failure occurs now
        self.verdicts = Verdicts(plan)

    # --- stages ---

    def _find_leaves(self) -> dict[int, tuple[str, Any]]:
        """Return where the values of weights and inputs come from, by node."""
        plan = self.plan
        leaves: dict[int, tuple[str, Any]] = {n: ("named", f"weight {name}") for name, n in plan.weights.items()}
        for name, n in plan.inputs.items():
            first, _, index = name.partition("_")
            if first == "state":
                leaves[n] = "before", int(index)
            elif first in ("start", "mask"):
                leaves[n] = "spread", name
            else:
                leaves[n] = "named", name
        return leaves

    def _find_reused(self) -> list[int]:
        """Return what torch computes in the forward pass, other than views, and needs in the backward pass."""
        plan = self.plan
        computed = (*self.train.first, *self.train.then)
        costly = {s.node for s in computed if plan.calls[s.node].operator.partition(".")[0] not in VIEWS}
        ends = [n for name, n in plan.results.items() if name != "y"]
        stored = {m.node for m in plan.reverse.memory if m.kind == "stored"}
        steps = self.evaluator.order([*ends, *plan.reverse.nodes()], self.known_in_reverse | costly | stored)
        needed = {*plan.reverse.nodes(), *(n for step in steps for n in self.evaluator.needs[step.node])}
        return sorted(needed & costly)

    def _dafter(self) -> list[int]:
        return [self.plan.inputs[f"dafter_{i}"] for i in range(self.plan.states)]

    def prepare_reverse(self, wanted: Iterable[str]) -> Stage:
        """Return the reverse program for the gradients of these names."""
        ends = tuple(self.plan.results[name] for name in wanted)
        stage = self.reverse.get(ends)
        if stage is None:
            stage = self.reverse[ends] = self.prepare(self.plan.reverse, self.known_in_reverse, set(), ends)
        return stage

    def prepare(self, scan: Scan, known: set[int], after: set[int], ends: Iterable[int]) -> Stage:
        """Prepare a program.

        Args:
            scan: The program.
            known: The nodes that are known before it runs.
            after: The nodes that are known when it has run, besides those that it stores.
            ends: The nodes that torch computes afterwards.
        """
        plan, ends = self.plan, tuple(ends)
        rows = {n: name for name, n in plan.inputs.items() if name == "mask" or name.startswith("start_")}
        written = scan.program.list_written()
        sources = [
            self._source(b, m, i in written, rows)
            for i, (b, m) in enumerate(zip(scan.program.buffers, scan.memory, strict=True))
        ]
        read = [s.node for s in sources if s.kind in ("weight", "shared", "rows")]
        first = self.evaluator.order(read, known)
        stored = {s.node for s in sources if s.kind == "new"}
        then = self.evaluator.order(ends, {*known, *after, *stored, *(step.node for step in first)})
        needs = self.evaluator.needs
        needed = {*read, *ends, *(n for step in (*first, *then) for n in needs[step.node])}
        return Stage(
            scan,
            tuple(sources),
            tuple((n, *self.leaves[n]) for n in sorted(needed & self.leaves.keys() & known)),
            tuple(first),
            tuple(then),
            tuple((n, i) for i, nodes in enumerate(plan.after) for n in nodes if n in needed),
        )

    def _source(self, buffer: Buffer, memory: BufferMemory, is_written: bool, rows: Mapping[int, str]) -> StageSource:
        if memory.kind in ("state", "gradient"):
            return StageSource(memory.kind, memory.index, buffer.size)
        value, size = self.plan.values.get(memory.node), buffer.size
        if memory.kind == "stored" and is_written:  # even if torch has already computed the same node
            return StageSource("new" if buffer.place is Place.TIME else "scratch", memory.node, size, value)
        if buffer.place is Place.ROW:
            return StageSource("row", memory.node, size, name=rows[memory.node])
        if memory.kind == "weight":
            return StageSource("weight", memory.node, size, is_transposed=memory.transposed)
        return StageSource("shared" if buffer.place is Place.WEIGHT else "rows", memory.node, size, value)

    # --- running ---

    def allocate(self, like: Tensor, *shape: int) -> Tensor:
        """Return uninitialised memory with the type and on the device of another tensor."""
        return new_empty(like, shape) if self.given is None else self.given(like, *shape)

    def evaluate(self, steps: Iterable[Step], known: dict[int, Any], rows: int, like: Tensor) -> None:
        """Run the steps of a program that are torch operators, and add their results to `known`."""
        given = None if torch.is_autocast_enabled(like.device.type) else self.given
        evaluate(steps, known, rows, like.device, like.dtype, given)

    def run_forward(
        self, named: Mapping[str, Tensor], state: Sequence[Tensor], packing: Packing, stage: Stage
    ) -> tuple[Tensor, list[Tensor], list[Tensor], dict[int, Any]]:
        """Run a forward program.

        Args:
            named: The step's inputs by name, packed, and the weights.
            state: The states before the first step.
            packing: Where the rows of each step are.
            stage: The program.

        Returns:
            The outputs (B, T, H), the last states, the states (B + N, ...) of all steps, packed, and what is known.
        """
        B, N, states = packing.B, packing.N, []
        for s in state:
            steps = self.allocate(s, B + N, *s.shape[1:])
            steps.narrow(0, 0, B).copy_(packing.sort(s))
            states.append(steps)
        known: dict[int, Any] = {}
        self.execute(stage, named, known, packing, {"state": states})
        for n, i in stage.after:
            known[n] = states[i].narrow(0, B, N)
        if stage.then:
            self.evaluate(stage.then, known, N, states[0])
        y = known[self.plan.results["y"]]
        y = packing.unpack(y if y.dtype == states[0].dtype else y.to(states[0].dtype))
        return y, [packing.take_ends(s) for s in states], states, known

    def execute(
        self,
        stage: Stage,
        named: Mapping[str, Tensor],
        known: dict[int, Any],
        packing: Packing,
        memory: Mapping[str, Sequence[Tensor]],
    ) -> None:
        """Run a program, and add what it stores for all steps to `known`.

        Args:
            stage: The program.
            named: The step's inputs by name, packed, and the weights.
            known: The values of nodes.
            packing: Where the rows of each step are.
            memory: The states and their gradients, each (B + N, ...).
        """
        like, N = memory["state"][0], packing.N
        is_reverse = stage.scan.program.reverse
        for n, kind, name in stage.leaves:
            if kind == "named":
                known[n] = named[name]
            elif kind == "spread":
                known[n] = packing.spread(named[name])
            elif is_reverse:
                known[n] = packing.states_before(memory["state"][name])
        self.evaluate(stage.first, known, N, like)
        dtype, tensors, stored = like.dtype, [], []
        for s in stage.sources:
            kind = s.kind
            t: Tensor | None
            if kind in memory:
                t = memory[kind][s.node]
                _check_length(s, t, packing.B + N)
            elif kind == "new":
                t = self.allocate(like, N, s.size)
                stored.append((s, t))
            elif kind == "scratch":
                t = None
            else:
                t = self._read(s, named[s.name] if kind == "row" else known[s.node], packing)
                if t.dtype != dtype:
                    t = t.to(dtype)
            tensors.append(t)
        self.run_program(stage.scan, tensors, packing)
        for s, t in stored:
            known[s.node] = _as_node(s.value, t, N)
        if not is_reverse:  # a forward program writes the states
            for n, kind, name in stage.leaves:
                if kind == "before":
                    known[n] = packing.states_before(memory["state"][name])

    def _read(self, s: StageSource, t: Tensor, packing: Packing) -> Tensor:
        """Return the memory of a value as a program expects it."""
        rows = 1
        if s.kind == "rows":
            rows = packing.N
            if not (t.dim() == 2 and t.shape == (rows, s.size) and t.is_contiguous()):
                t = as_rows(s.value, t, rows)
        elif s.kind == "weight":
            t = t.transpose(-1, -2) if s.is_transposed else t
            t = t if self.is_direct and is_transposed(t) else t.contiguous()
        else:
            rows = packing.B if s.kind == "row" else 1
            t = t.contiguous()
        _check_length(s, t, rows)
        return t


def _check_length(s: StageSource, t: Tensor, rows: int) -> None:
    """Raise an error if a tensor is not as long as a program says: programs read and write by address."""
    if t.numel() != rows * s.size:
        raise UnfitError(f"a program needs {rows} x {s.size} numbers, got {tuple(t.shape)}")


class StageSource(NamedTuple):
    """Where the memory of a program's buffer comes from.

    Attributes:
        kind: "state" and "gradient" (number `node`); "new", stored for all steps; "scratch", stored within a step;
            "row", one value per row for all steps; "weight", of a product; "shared", by all rows; "rows", one value
            per packed row.
        node: The node, or the number of a state.
        size: Elements per row; in total for weights and shared values.
        value: The shape of the node's value.
        name: The input, for "row".
        is_transposed: Whether a weight's node holds (N, K).
    """

    kind: str
    node: int
    size: int = 0
    value: Value | None = None
    name: str = ""
    is_transposed: bool = False


@dataclass(frozen=True, eq=False)
class Stage:
    """A program, and what torch computes before and after it.

    Attributes:
        scan: The program.
        sources: Where the memory of its buffers comes from.
        leaves: The required weights and inputs: node, kind and name, see `Stages._find_leaves`.
        first: What torch computes before the program.
        then: What torch computes after it.
        after: The nodes that are states after the step and are needed afterwards: node, index of the state.
    """

    scan: Scan
    sources: tuple[StageSource, ...]
    leaves: tuple[tuple[int, str, Any], ...]
    first: tuple[Step, ...]
    then: tuple[Step, ...]
    after: tuple[tuple[int, int], ...]


def as_rows(value: Value | None, t: Tensor, N: int) -> Tensor:
    """Return a node's value as (N, elements per row)."""
    assert value is not None
    d = value.batch
    assert d is not None
    if d == 0 and value.sizes[0] == 1:
        return t.reshape(N, math.prod(value.sizes)).contiguous()
    return t.unflatten(d, (N, value.sizes[d])).movedim(d, 0).reshape(N, math.prod(value.sizes)).contiguous()


def _as_node(value: Value | None, t: Tensor, N: int) -> Tensor:
    """Return (N, elements per row) in a node's own shape and kind."""
    assert value is not None
    d = value.batch
    assert d is not None
    t = t != 0 if value.is_truth else t
    if d == 0 and value.sizes[0] == 1:
        return t if len(value.sizes) == 2 else t.view(N, *value.sizes[1:])
    return t.view(N, *value.sizes).movedim(0, d).flatten(d, d + 1)
