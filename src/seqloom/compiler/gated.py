"""Fit a cell to the gated GPU kernels: one product with one state, and arithmetic within each unit.

Those kernels carry a row of the batch through time and know lengths, resets, dropout and zoneout. They require
straight-line code for one unit: the new states from the old ones, from planes of the input (the parts that need no
state, computed by torch for all steps), from the product's gates, and from vectors of weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from seqloom.compiler.ir import Access, Argument, Instruction, Nest, Place, Product, Register
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import Plan

MOST_STATES = 4  # the kernels have pointer arguments for this many states
MOST_GATES = 8  # the products of more gates do not fit into a thread's registers
Group = Literal["x", "u", "s", "v", "mask"]


@dataclass(frozen=True, order=True)
class Plane:
    """A vector with one element per unit inside the rows of a node: element offset + stride * unit."""

    node: int
    offset: int
    stride: int  # 1, or 0 if all units have the same value


@dataclass(frozen=True)
class UnitGate:
    """One gate of a product with the state: one element per unit.

    Attributes:
        weight: The node of the weight, (K, N), or (N, K) if `transposed`.
        transposed: Whether the node is (N, K).
        offset: The first of the gate's columns.
        bias: What is added to the product; None if nothing is.
    """

    weight: int
    transposed: bool
    offset: int
    bias: Plane | None = None


@dataclass(frozen=True)
class Unit:
    """Straight-line code for one unit.

    Attributes:
        leaves: The names of what it reads: x[i], u[i], s[i] and v[i]. An `Access` to buffer k reads leaf k.
        body: The instructions.
        after: The states after the step.
    """

    leaves: tuple[str, ...]
    body: tuple[Instruction, ...]
    after: tuple[Argument, ...]


@dataclass(frozen=True)
class GatedProgram:
    """A cell as the gated kernels run it.

    Attributes:
        inputs: Planes that need no state: x[i] of the unit.
        gates: The product with the first state: u[i].
        vectors: Planes of weights that are the same for all rows and steps: v[i].
        states: The cell's indices of the states in the kernels' order: s[i]. The product reads the first.
        output: Which of these is the output.
        unit: The code of one unit.
    """

    inputs: tuple[Plane, ...]
    gates: tuple[UnitGate, ...]
    vectors: tuple[Plane, ...]
    states: tuple[int, ...]
    output: int
    unit: Unit


def fit_gated(plan: Plan, hidden: int) -> GatedProgram:
    """Express a compiled cell as code for one unit.

    Args:
        plan: The cell, traced without resets and zoneout, which the kernels have themselves; with recurrent dropout,
            the state that the product reads must be multiplied by the mask.
        hidden: The hidden size.

    Raises:
        UnsupportedError: If the cell does not fit; the message says why.
    """
    if plan.draws:
        raise UnsupportedError("step draws random numbers")
    return _Reader(plan, hidden).read()


class _Reader:
    """Turn the forward program into code for one unit.

    Until `read` numbers the leaves, leaf k is `keys[k]`: its group, and a plane, a state or a column of a product.
    """

    def __init__(self, plan: Plan, hidden: int) -> None:
        self.plan, self.hidden = plan, hidden
        self.program, self.memory = plan.infer.program, plan.infer.memory
        self.keys: list[tuple[Group, object]] = []
        self.body: list[Instruction] = []
        self.written: dict[tuple[int, int], Argument] = {}  # by buffer and offset
        self.products: dict[int, Product] = {}  # by the buffer of the result
        self.seen: set[tuple[int, bool]] = set()  # the states that products read, and whether the mask is applied

    def read(self) -> GatedProgram:
        output = self._find_output()
        for part in self.program.parts:
            if isinstance(part, Product):
                self._read_product(part)
            else:
                self._read_nest(part)
        if not self.seen:
            raise UnsupportedError("step multiplies no state with a weight")
        first = self._find_seen_state()
        states = (first, *(i for i in range(self.plan.states) if i != first))
        after = [self._find_after(i) for i in states]
        self._drop_unused(after)
        biases = self._fold_biases()
        self._drop_unused(after)
        return self._number(states, states.index(output), after, biases)

    def _find_output(self) -> int:
        y, k = self.plan.results["y"], self.plan.states
        if k > MOST_STATES:
            raise UnsupportedError(f"the cell has {k} states, more than {MOST_STATES}")
        for i, nodes in enumerate(self.plan.after):
            if y in nodes:
                return i
        raise UnsupportedError("the output is not one of the states")

    # --- parts ---

    def _read_product(self, product: Product) -> None:
        if product.heads > 1 or product.rows > 1:
            raise UnsupportedError("step multiplies a state with several heads or rows")
        if self.hidden != product.K or product.N % self.hidden:
            expected = f"the gated kernels need {self.hidden} rows and a multiple of {self.hidden} columns"
            raise UnsupportedError(f"step multiplies with a weight of {product.K} x {product.N}; {expected}")
        source = self.memory[product.source]
        if source.kind == "state" and product.offset == 0:
            self.seen.add((source.index, False))
        else:
            value = self.written.get((product.source, product.offset))
            state = self._find_masked_state(value)
            if state is None:
                raise UnsupportedError("step multiplies something other than a state with a weight")
            self.seen.add((state, True))
        self.products[product.out] = product

    def _find_masked_state(self, value: Argument | None) -> int | None:
        """Return the index of the state whose product with the mask this is; None if it is something else."""
        if not isinstance(value, Register):
            return None
        made = self.body[value.index]
        keys = [self.keys[a.buffer] for a in made.arguments if isinstance(a, Access)]
        groups = dict(keys)
        if made.operator != "mul" or set(groups) != {"s", "mask"}:
            return None
        state = groups["s"]
        return state if isinstance(state, int) else None

    def _find_seen_state(self) -> int:
        states = {state for state, _ in self.seen}
        if len(states) > 1:
            raise UnsupportedError("step multiplies several states with weights")
        if len(self.seen) > 1 or ({True} == {masked for _, masked in self.seen}) != ("mask" in self.plan.inputs):
            raise UnsupportedError("step does not apply the dropout mask to the state that it multiplies")
        return states.pop()

    def _read_nest(self, nest: Nest) -> None:
        if nest.reductions:
            raise UnsupportedError("step combines the units of a row")
        if nest.sizes != (self.hidden,):
            raise UnsupportedError(f"step computes {nest.sizes or 1} numbers per row, not one for each unit")
        registers: dict[int, Argument] = {}

        def find(a: Argument) -> Argument:
            if isinstance(a, Register):
                return registers[a.index]
            return self._read_access(a) if isinstance(a, Access) else a

        for i in nest.body:
            registers[i.out] = self._add(i.operator, tuple(find(a) for a in i.arguments))
        for store in nest.stores:
            if store.to.strides != (1,) or store.to.offset % self.hidden:
                raise UnsupportedError("step writes units in another order")
            self.written[store.to.buffer, store.to.offset] = find(store.value)

    def _add(self, operator: str, arguments: tuple[Argument, ...]) -> Register:
        for i in self.body:
            if (i.operator, i.arguments) == (operator, arguments):
                return Register(i.out)
        self.body.append(Instruction(operator, len(self.body), arguments))
        return Register(len(self.body) - 1)

    def _read_access(self, access: Access) -> Argument:
        (stride,) = access.strides
        number, offset = access.buffer, access.offset
        place, memory = self.program.buffers[number].place, self.memory[number]
        if stride == 1 and (number, offset) in self.written:
            return self.written[number, offset]
        if memory.kind == "value" and stride in (0, 1) and place is not Place.ROW:
            return self._leaf("x" if place is Place.TIME else "v", Plane(memory.node, offset, stride))
        if stride != 1 or offset % self.hidden:
            raise UnsupportedError("step mixes different units of a row")
        if memory.kind == "state" and place is Place.BEFORE and offset == 0:
            return self._leaf("s", memory.index)
        if memory.node == self.plan.inputs.get("mask"):
            return self._leaf("mask", 0)
        if number in self.products:
            return self._leaf("u", (number, offset))
        raise UnsupportedError("step reads a value that is neither of this unit nor of this step")

    def _leaf(self, group: Group, key: object) -> Access:
        if (group, key) not in self.keys:
            self.keys.append((group, key))
        return Access(self.keys.index((group, key)), 0, ())

    def _find_after(self, state: int) -> Argument:
        for (number, offset), value in self.written.items():
            memory, buffer = self.memory[number], self.program.buffers[number]
            is_after = memory.kind == "state" and memory.index == state and buffer.place is Place.AFTER
            if is_after and buffer.size == self.hidden and offset == 0:
                return value
        raise UnsupportedError(f"state {state} is not one number per unit")

    # --- after all parts ---

    def _drop_unused(self, after: Sequence[Argument]) -> None:
        used = {a.index for a in after if isinstance(a, Register)}
        for i in reversed(self.body):
            if i.out in used:
                used |= {a.index for a in i.arguments if isinstance(a, Register)}
        self.body = [i for i in self.body if i.out in used]

    def _fold_biases(self) -> dict[int, Plane]:
        """Remove u + b where u is used for nothing else: the kernels have such biases. Return them by leaf of u."""
        biases: dict[int, Plane] = {}
        for leaf, (group, _) in enumerate(self.keys):
            uses = [i for i in self.body if any(_reads(a, leaf) for a in i.arguments)]
            if group != "u" or len(uses) != 1 or uses[0].operator != "add":
                continue
            (other, *_) = [a for a in uses[0].arguments if not _reads(a, leaf)] or [0.0]
            key = self.keys[other.buffer] if isinstance(other, Access) else None
            if key is None or key[0] != "v" or not isinstance(key[1], Plane):
                continue
            biases[leaf] = key[1]
            self._replace(uses[0].out, Access(leaf, 0, ()))
        return biases

    def _replace(self, register: int, value: Argument) -> None:
        """Use a leaf instead of a register; its instruction is unused then."""

        def find(a: Argument) -> Argument:
            return value if a == Register(register) else a

        self.body = [replace(i, arguments=tuple(find(a) for a in i.arguments)) for i in self.body]

    def _number(
        self, states: tuple[int, ...], output: int, after: Sequence[Argument], biases: Mapping[int, Plane]
    ) -> GatedProgram:
        """Renumber leaves and registers; planes of one node stand side by side, so that torch need not copy them."""
        values = [*(a for i in self.body for a in i.arguments), *after]
        used = {a.buffer for a in values if isinstance(a, Access)}
        order: dict[str, list[int]] = {g: [k for k in used if self.keys[k][0] == g] for g in ("x", "u", "v", "mask")}
        for leaves in order.values():
            leaves.sort(key=lambda k: self.keys[k][1])  # type: ignore[arg-type,return-value]
        if order["mask"]:
            raise UnsupportedError("step uses the dropout mask for more than the state that it multiplies")
        if not order["x"]:
            raise UnsupportedError("step does not use its input")
        if not 0 < len(order["u"]) <= MOST_GATES or len(order["x"]) > MOST_GATES:
            raise UnsupportedError(f"step has more than {MOST_GATES} gates")
        found = {("s", state): i for i, state in enumerate(states)}
        leaves = [k for group in ("x", "u") for k in order[group]]
        names = [f"{group}[{i}]" for group in ("x", "u") for i in range(len(order[group]))]
        numbers = {k: i for i, k in enumerate(leaves)}
        numbers |= {k: len(leaves) + found[key] for k, key in enumerate(self.keys) if key in found}
        names += [f"s[{i}]" for i in range(len(states))]
        numbers |= {k: len(names) + i for i, k in enumerate(order["v"])}
        names += [f"v[{i}]" for i in range(len(order["v"]))]
        registers = {i.out: n for n, i in enumerate(self.body)}

        def rename(a: Argument) -> Argument:
            if isinstance(a, Register):
                return Register(registers[a.index])
            return Access(numbers[a.buffer], 0, ()) if isinstance(a, Access) else a

        body = [Instruction(i.operator, registers[i.out], tuple(map(rename, i.arguments))) for i in self.body]
        unit = Unit(tuple(names), tuple(body), tuple(map(rename, after)))
        gates = tuple(self._gate(k, biases.get(k)) for k in order["u"])
        return GatedProgram(self._planes(order["x"]), gates, self._planes(order["v"]), states, output, unit)

    def _planes(self, leaves: Sequence[int]) -> tuple[Plane, ...]:
        return tuple(key for k in leaves if isinstance(key := self.keys[k][1], Plane))

    def _gate(self, leaf: int, bias: Plane | None) -> UnitGate:
        key = self.keys[leaf][1]
        assert isinstance(key, tuple)
        number, offset = key
        weight = self.memory[self.products[number].weight]
        return UnitGate(weight.node, weight.transposed, offset, bias)


def _reads(a: Argument, leaf: int) -> bool:
    return isinstance(a, Access) and a.buffer == leaf
