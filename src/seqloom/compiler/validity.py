"""Check that plans are valid: engines read and write memory by address, and plans may come from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from seqloom.compiler.draws import check_draw
from seqloom.compiler.ir import OPERATORS, REDUCTIONS, Argument, Nest, Place, Product, Program, Register
from seqloom.compiler.plan import Plan, UnfitError, Value, find_operator, references

MEMORY = ("state", "gradient", "value", "weight", "stored")  # kinds of `Memory`
PLACEMENT = ("device", "layout", "pin_memory", "memory_format", "non_blocking", "out")  # arguments that no plan has


def check_program(program: Program) -> None:
    """Check that a program uses known operators, and that every access stays inside its buffer.

    Raises:
        ValueError: If a part is not valid; the message names it.
    """
    if any(buffer.size < 0 for buffer in program.buffers):
        raise ValueError("a buffer has a negative size")
    for part in program.parts:
        if isinstance(part, Product):
            _check_product(part, program)
        else:
            _check_nest(part, program)


def _check_product(p: Product, program: Program) -> None:
    buffers = program.buffers
    if not all(0 <= b < len(buffers) for b in (p.source, p.weight, p.out)) or min(p.heads, p.K, p.N, p.rows) < 1:
        raise ValueError(f"not a valid product of {len(buffers)} buffers: {p}")
    source, weight, out = buffers[p.source], buffers[p.weight], buffers[p.out]
    if weight.place is not Place.WEIGHT or weight.size != p.heads * p.K * p.N:
        raise ValueError(f"{weight} is not a weight of {p.heads} x {p.K} x {p.N} numbers")
    if p.offset < 0 or p.offset + p.rows * p.heads * p.K > source.size:
        raise ValueError(f"a product reads {p.rows * p.heads * p.K} numbers from number {p.offset} of {source}")
    if out.place is Place.WEIGHT or out.size != p.rows * p.heads * p.N:
        raise ValueError(f"a product writes {p.rows * p.heads * p.N} numbers to {out}")
    if p.source == p.out:
        raise ValueError(f"a product reads and writes {out}")


def _check_nest(nest: Nest, program: Program) -> None:
    loops = len(nest.sizes)
    if any(size < 1 for size in nest.sizes) or not 0 <= nest.inner <= loops:
        raise ValueError(f"a nest has loops {nest.sizes}, of which {nest.inner} are inner")
    if bool(nest.reductions) == bool(nest.stores) or (nest.stores and nest.inner):
        raise ValueError("a nest needs either stores or reductions, and inner loops only for reductions")
    for access in [*nest.reads(), *nest.writes()]:
        if len(access.strides) != loops or not 0 <= access.buffer < len(program.buffers):
            raise ValueError(f"{access} does not fit a nest of {loops} loops and {len(program.buffers)} buffers")
        ends = [stride * (size - 1) for stride, size in zip(access.strides, nest.sizes, strict=True)]
        first = access.offset + sum(min(0, e) for e in ends)
        last = access.offset + sum(max(0, e) for e in ends)
        buffer = program.buffers[access.buffer]
        if first < 0 or last >= buffer.size:
            raise ValueError(f"a nest reaches numbers {first} to {last} of {buffer.name}, which has {buffer.size}")
    for access in nest.writes():
        if program.buffers[access.buffer].place is Place.WEIGHT:
            raise ValueError(f"a nest writes to the weight {program.buffers[access.buffer].name}")
    if any(any(r.to.strides[loops - nest.inner :]) for r in nest.reductions):
        raise ValueError("the result of a reduction has a stride in an inner loop")
    written: set[int] = set()
    for instruction in nest.body:
        if OPERATORS.get(instruction.operator) != len(instruction.arguments):
            raise ValueError(f"unknown operator {instruction.operator} of {len(instruction.arguments)} arguments")
        _check_registers(instruction.arguments, written)
        if instruction.out in written:
            raise ValueError(f"register {instruction.out} is written twice")
        written.add(instruction.out)
    _check_registers([*(s.value for s in nest.stores), *(r.value for r in nest.reductions)], written)
    for reduction in nest.reductions:
        if reduction.operator not in REDUCTIONS:
            raise ValueError(f"unknown reduction {reduction.operator}")


def _check_registers(arguments: Sequence[Argument], written: set[int]) -> None:
    for argument in arguments:
        if isinstance(argument, Register) and argument.index not in written:
            raise ValueError(f"register {argument.index} is read before it is written")


def check_plan(plan: Plan) -> None:
    """Check that a plan from a file calls operators that exist, in order, and that its programs write no input.

    Raises:
        ValueError: If something is not valid; the message names it.
    """
    for n, call in plan.calls.items():
        function = find_operator(call.operator)
        if isinstance(function, torch._ops.OpOverload) and function._schema.is_mutable:
            raise ValueError(f"a plan calls {call.operator}, which changes its arguments")
        if any(not isinstance(r, int) or not 0 <= r < n for r in references(call)):
            raise ValueError(f"call {n} of a plan needs the result of a later one")
        if not {name for name, _ in call.named}.isdisjoint(PLACEMENT):
            raise ValueError(f"call {n} of a plan chooses where its result lies")
    for draw in plan.draws:
        check_draw(draw)
    if {n for n in plan.inputs if n.startswith("draw_")} != {f"draw_{i}" for i in range(len(plan.draws))}:
        raise ValueError("a plan has other random inputs than it draws")
    for scan in (plan.infer, plan.train, plan.reverse):
        check_program(scan.program)
        if len(scan.memory) != len(scan.program.buffers):
            raise ValueError("buffers and their memory differ in number")
        written = scan.program.list_written()
        for i, (buffer, memory) in enumerate(zip(scan.program.buffers, scan.memory, strict=True)):
            if memory.kind not in MEMORY:
                raise ValueError(
                    f"{buffer.name} has memory of kind {memory.kind!r}; expected one of {', '.join(sorted(MEMORY))}"
                )
            if i in written and memory.kind in ("value", "weight"):
                raise ValueError(f"a program writes to {buffer.name}, which it may only read")
            if memory.kind in ("state", "gradient") and not 0 <= memory.index < plan.states:
                raise ValueError(f"{buffer.name} belongs to state {memory.index} of {plan.states}")


def check_sizes(plan: Plan, states: Sequence[int], weights: Mapping[str, Sequence[int]]) -> None:
    """Check that a plan from a file fits a cell.

    Args:
        plan: The plan.
        states: The size of each state in one row.
        weights: The shapes of the tensors that the cell's step may read, by name.

    Raises:
        UnfitError: If a state or a weight has another size; the message names it.
    """
    if plan.states != len(states):
        raise UnfitError(f"it has {plan.states} states, the cell {len(states)}")
    for scan in (plan.infer, plan.train, plan.reverse):
        for buffer, memory in zip(scan.program.buffers, scan.memory, strict=True):
            if memory.kind not in ("state", "gradient"):
                continue
            if buffer.size != states[memory.index] or buffer.place not in (Place.BEFORE, Place.AFTER):
                raise UnfitError(f"state {memory.index} has {states[memory.index]} numbers, in the plan {buffer}")
    for name, n in plan.weights.items():
        if name not in weights or plan.values[n] != Value(None, tuple(weights[name])):
            raise UnfitError(f"it reads {name} as {plan.values[n]}, in the cell it is {weights.get(name)}")
