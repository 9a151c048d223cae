"""Schedule a traced step: what runs before the loop, in the forward loop, in the reverse loop, and after it.

Before the loop, torch computes everything that needs no state, for all steps at once; after it, the weight gradients
for all steps at once. The forward loop saves the products, reductions and costly functions that the reverse loop needs;
the reverse loop recomputes the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from seqloom.compiler.ir import Place
from seqloom.compiler.lowering import BufferSource, Lowered, lower
from seqloom.compiler.nodes import (
    COSTLY,
    ROWS,
    SUMS,
    UnsupportedError,
    batch,
    count,
    is_truth,
    kind,
    line_of,
    name_of,
    operands,
    row,
    shape,
)
from seqloom.compiler.plan import PURE, BufferMemory, OperatorCall, Plan, Scan, Value
from seqloom.compiler.rows import check_own_derivatives, check_rows
from seqloom.compiler.trace import JointGraph, aten

ONCE = ("mask", "start")  # inputs with one value per row for all steps


def plan(trace: JointGraph, is_wide: bool = False) -> Plan:
    """Turn a traced step into programs and calls.

    Args:
        trace: The step.
        is_wide: Whether the loops also compute the pointwise operations that torch could compute before or after them,
            which reads and writes less memory.

    Raises:
        UnsupportedError: If a node is not one that the compiler knows, or combines rows of the batch.
    """
    check_rows(trace.graph, [trace.dy, *trace.dafter])
    if trace.has_functions:
        check_own_derivatives(trace.graph, [trace.dy, *trace.dafter])
    if is_wide:
        try:
            return _Schedule(trace, is_wide).plan()
        except UnsupportedError:
            pass  # a move that only torch can follow, or the step, may be the reason: the next attempt will tell
    return _Schedule(trace).plan()


class _Stage(NamedTuple):
    """A loop with what torch computes around it.

    Attributes:
        low: The loop.
        known: What earlier loops have stored.
        stored: What this loop stores.
        ends: What torch computes afterwards.
    """

    low: Lowered
    known: Sequence[fx.Node]
    stored: Sequence[fx.Node]
    ends: Sequence[fx.Node]


class _Schedule:
    def __init__(self, trace: JointGraph, is_wide: bool = False) -> None:
        self.trace, self.graph, self.is_wide = trace, trace.graph, is_wide
        with self.graph.inserting_before(self.graph.output_node()):  # each result of a loop has a separate node
            self.after = [self._copy(n, s) for n, s in zip(trace.after, trace.states, strict=True)]
            self.dbefore = [self._copy(n, s) for n, s in zip(trace.dbefore, trace.states, strict=True)]
        for i in range(len(self.after)):
            self.after[i].name, self.dbefore[i].name = f"new_state_{i}", f"dstate_{i}"
            trace.dafter[i].name = f"dnew_state_{i}"
        trace.dy.name = "dy"
        self.order = {n: i for i, n in enumerate(self.graph.nodes)}
        self.late = self._reach(trace.states)
        self.carried = self._reach(trace.dafter)
        self.from_dy = self._reach([trace.dy])
        if is_wide:
            self.late |= self._find_early()
        self.unit = row(trace.states[0])[-1]
        self.gradients = [n for n in (trace.dx, trace.ddt, *trace.dstarts, *trace.dweights.values()) if n is not None]
        self.exact = self._find_exact()
        self.forward = self._above(self.after, lambda n: n in self.late or n in self.after)
        self.inside = set(self.forward)
        # a state's node and its copy have the same value; one that needs no state is known before the loop
        self.twins = [[n, *(a for a in operands(n) if a in self.inside)] for n in self.after]

    def _copy(self, n: fx.Node | None, like: fx.Node) -> fx.Node:
        if n is None:
            n = self.graph.call_function(aten.zeros_like.default, (like,))
            n.meta["val"] = like.meta["val"]
        copied = self.graph.call_function(aten.clone.default, (n,))
        copied.meta["val"] = like.meta["val"]
        return copied

    def _reach(self, starts: Sequence[fx.Node]) -> set[fx.Node]:
        reached = set(starts)
        for n in self.graph.nodes:
            if any(a in reached for a in n.all_input_nodes):
                reached.add(n)
        return reached

    def _above(self, ends: Sequence[fx.Node], is_inside: Callable[[fx.Node], bool]) -> list[fx.Node]:
        nodes: set[fx.Node] = set()
        todo = list(ends)
        while todo:
            n = todo.pop()
            if n not in nodes and n.op == "call_function" and (is_inside(n) or kind(n) == "constant"):
                nodes.add(n)
                todo += n.all_input_nodes
        return sorted(nodes, key=self.order.__getitem__)

    def plan(self) -> Plan:
        t = self.trace
        known = {n for pair in self.twins for n in pair}  # the states after the step lie in memory
        for_y = self._saved([t.y], known)
        saved = self._saved([t.y, *self.dbefore, *self.gradients], known)
        states = {s: (BufferSource("state", index=i), Place.BEFORE) for i, s in enumerate(t.states)}
        once = {n: (BufferSource("value", n), Place.ROW) for n in t.starts}
        once |= {n: (BufferSource("value", n), Place.ROW) for name, n in t.others.items() if name == "mask"}
        wanted = {n: BufferSource("state", index=i) for i, n in enumerate(self.after)}
        infer = lower(self.forward, wanted, states | once, for_y, self.unit, reverse=False)
        train = lower(self.forward, wanted, states | once, saved, self.unit, reverse=False)
        memory = states | once | {n: (BufferSource("stored", n), Place.TIME) for n in saved}
        for i, pair in enumerate(self.twins):
            for n in pair:
                if n not in memory and n not in t.states:
                    memory[n] = BufferSource("state", index=i), Place.AFTER
        memory |= {n: (BufferSource("gradient", index=i), Place.AFTER) for i, n in enumerate(t.dafter)}

        def in_reverse(n: fx.Node) -> bool:
            if n in self.carried or n in self.dbefore:
                return True
            again = (n in self.late or n in self.from_dy) and n not in memory and n not in self.exact
            return again and kind(n) in ("move", "point")

        inside = self._above(self.dbefore, in_reverse)
        if self.is_wide:
            added = self._find_gradients(set(inside))
            inside = self._above([*self.dbefore, *added], lambda n: n in added or in_reverse(n))
        asked = self._boundary(set(inside), set(memory))
        inside = sorted({*inside, *asked}, key=self.order.__getitem__)
        wanted = {n: BufferSource("gradient", index=i) for i, n in enumerate(self.dbefore)}
        reverse = lower(inside, wanted, memory, asked, self.unit, reverse=True)
        stages = [
            _Stage(infer, [], for_y, [t.y]),
            _Stage(train, [], saved, [t.y]),
            _Stage(reverse, saved, asked, self.gradients),
        ]
        return self._build(stages)

    def _saved(self, ends: Sequence[fx.Node], known: set[fx.Node]) -> list[fx.Node]:
        """Return the nodes of the forward loop that must be saved for all steps, to compute the ends later."""
        seen: set[fx.Node] = set()
        todo, saved = list(ends), []
        while todo:
            n = todo.pop()
            if n in seen or n in known or n.op != "call_function":
                continue
            seen.add(n)
            costly = kind(n) in ("product", "contraction", "sum") or (kind(n) == "point" and name_of(n) in COSTLY)
            if n in self.inside and n in self.late and (costly or n in self.exact):
                saved.append(n)
            else:
                todo += n.all_input_nodes
        return sorted(saved, key=self.order.__getitem__)

    def _find_exact(self) -> set[fx.Node]:
        """Return the nodes that are compared with their own maximum or minimum, as in the derivative of `amax`.

        Recomputed in another order, none of their values might equal it.
        """
        exact: set[fx.Node] = set()
        for n in self.graph.nodes:
            if n.op == "call_function" and name_of(n) in ("eq", "ne"):
                nodes = [a for a in operands(n)[:2] if isinstance(a, fx.Node)]
                if any(_is_extreme(a) for a in nodes):
                    exact.update(nodes)
        return exact

    def _find_early(self) -> set[fx.Node]:
        """Return the pointwise nodes that need no state and that only the forward loop reads."""
        later = self.carried | self.from_dy
        inside = set(self.late)
        for n in reversed(self.graph.nodes):
            if n in later or n in inside or n.op != "call_function" or n in (self.trace.y, *self.trace.after):
                continue
            users = [u for u in n.users if u not in later]
            if users and all(u in inside for u in users) and kind(n) in ("move", "point") and batch(n) is not None:
                inside.add(n)
        return inside

    def _find_gradients(self, inside: set[fx.Node]) -> set[fx.Node]:
        """Return the pointwise nodes that the gradients need and that the reverse loop can compute without products."""
        needed = set(self._above(self.gradients, lambda _: True))
        added: set[fx.Node] = set()
        for n in self.graph.nodes:
            if n not in needed or n in inside or kind(n) not in ("move", "point") or batch(n) is None:
                continue
            late = [a for a in n.all_input_nodes if a in self.carried]
            if not late or not all(a in inside or a in added or a in self.trace.dafter for a in late):
                continue
            if isinstance(n.meta["val"], torch.Tensor) and count(n) <= max(map(_largest, late)):
                added.add(n)
        return added

    def _boundary(self, inside: set[fx.Node], memory: set[fx.Node]) -> list[fx.Node]:
        """Return the results of the reverse loop that torch needs afterwards; concatenations are returned undivided."""
        seen: set[fx.Node] = set()
        asked: list[fx.Node] = []
        todo = list(self.gradients)
        while todo:
            n = todo.pop()
            if n in seen or n in memory or n.op != "call_function":
                continue
            seen.add(n)
            whole = name_of(n) == "cat" and batch(n) is not None and all(a in inside for a in n.all_input_nodes)
            if whole or (n in inside and kind(n) not in ("move", "constant")):
                asked.append(n)
            else:
                todo += n.all_input_nodes
        return sorted(asked, key=self.order.__getitem__)

    # --- plain data ---

    def _build(self, stages: Sequence[_Stage]) -> Plan:
        t, number = self.trace, self.order
        inputs = {"x": t.x, "dy": t.dy} | t.others
        for name, nodes in (("state", t.states), ("start", t.starts), ("dafter", t.dafter)):
            inputs |= {f"{name}_{i}": n for i, n in enumerate(nodes)}
        results = {"y": t.y, "dx": t.dx, "ddt": t.ddt} | {f"dstart_{i}": n for i, n in enumerate(t.dstarts)}
        results |= {f"dweight {name}": n for name, n in t.dweights.items()}
        given = {*inputs.values(), *t.weights.values(), *(n for pair in self.twins for n in pair)}
        called: set[fx.Node] = set()
        touched = set(given)
        for stage in stages:
            before = given | set(stage.known)
            sources = [s.node for s in stage.low.sources if s.node is not None]
            values = [s.node for s in stage.low.sources if s.node is not None and s.kind != "stored"]
            called |= self._computed_by_torch(values, before)
            called |= self._computed_by_torch(stage.ends, before | set(stage.stored))
            touched |= {*sources, *stage.ends}
        shaped = [n for n in self.graph.nodes if n in touched | called and isinstance(n.meta.get("val"), torch.Tensor)]
        infer, train, reverse = (self._scan(stage.low) for stage in stages)
        return Plan(
            {number[n]: self._call(n) for n in self.graph.nodes if n in called},
            {number[n]: _value(n) for n in shaped},
            {name: number[n] for name, n in inputs.items()},
            {name: number[n] for name, n in t.weights.items()},
            {name: number[n] for name, n in results.items() if n is not None},
            tuple(tuple(number[n] for n in pair if n.op == "call_function") for pair in self.twins),
            infer,
            train,
            reverse,
            draws=tuple(t.draws),
        )

    def _scan(self, low: Lowered) -> Scan:
        sources = [(s.kind, -1 if s.node is None else self.order[s.node], s.index, s.transposed) for s in low.sources]
        return Scan(low.program, tuple(BufferMemory(*source) for source in sources))

    def _computed_by_torch(self, ends: Sequence[fx.Node], memory: set[fx.Node]) -> set[fx.Node]:
        nodes: set[fx.Node] = set()
        todo = list(ends)
        while todo:
            n = todo.pop()
            if n not in nodes and n not in memory:
                if n.op != "call_function":
                    raise UnsupportedError(f"step needs {n.name}, which has no value outside of the loop")
                nodes.add(n)
                todo += n.all_input_nodes
        return nodes

    def _call(self, n: fx.Node) -> OperatorCall:
        skipped = ("device", "layout", "pin_memory", "memory_format", "non_blocking")
        named = {k: v for k, v in n.kwargs.items() if k not in skipped and v is not None}
        if name_of(n) not in PURE | {"getitem"}:
            raise UnsupportedError(f"step calls {name_of(n)}{line_of(n)}, which the compiler does not know")
        arguments = tuple(self._argument(a) for a in operands(n))
        target: Any = n.target
        name = "getitem" if name_of(n) == "getitem" else f"{name_of(n)}.{target._overloadname}"
        return OperatorCall(name, arguments, tuple((k, self._argument(v)) for k, v in named.items()))

    def _argument(self, a: object) -> object:
        if isinstance(a, fx.Node):
            return {"node": self.order[a]}
        if isinstance(a, (list, tuple)):
            return [self._argument(v) for v in a]
        if isinstance(a, int) and not isinstance(a, bool) and a and a % ROWS == 0:
            return {"rows": a // ROWS}
        if isinstance(a, torch.dtype):
            return {"dtype": str(a).removeprefix("torch.")}
        if a is None or isinstance(a, (bool, int, float, str)):
            return a
        raise UnsupportedError(f"an operator's argument {a!r} cannot be stored")


def _is_extreme(n: fx.Node) -> bool:
    """Return whether a node is a maximum or minimum, perhaps reshaped."""
    while n.op == "call_function" and kind(n) == "move" and n.all_input_nodes:
        n = n.all_input_nodes[0]
    return n.op == "call_function" and SUMS.get(name_of(n)) in ("maximum", "minimum")


def _largest(n: fx.Node) -> int:
    return count(n) if isinstance(n.meta["val"], torch.Tensor) else 0


def _value(n: fx.Node) -> Value:
    return Value(batch(n), row(n) if batch(n) is not None else shape(n), is_truth(n))
