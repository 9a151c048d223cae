"""Check that a program is valid: engines read and write memory by address, and programs are also read from files."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.compiler.ir import OPERATORS, REDUCTIONS, Argument, Nest, Place, Product, Program, Register


def check_program(program: Program) -> None:
    """Check that a program uses known operators, and that every access stays inside its buffer.

    Raises:
        ValueError: With the part that is not valid.
    """
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
