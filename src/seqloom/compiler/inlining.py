"""Compute single values of a row, such as a mean, where they are needed.

A nest of one iteration keeps all threads of a block but one waiting. It has few instructions, so every thread that
needs the result computes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from seqloom.compiler.ir import Access, Argument, Instruction, Nest, Reduction, Register, Store

LONGEST = 8  # instructions of a nest that is computed several times


def inline_single(nests: Sequence[Nest]) -> list[Nest]:
    """Return nests that recompute what preceding nests of one iteration would have stored.

    Those nests stay: others may need what they store.
    """
    done: list[Nest] = []
    single: list[Nest] = []  # nests of one iteration whose operands have not changed
    for nest in nests:
        changed = _inline(nest, single)
        done.append(changed)
        written = {a.buffer for a in nest.writes()}
        single = [n for n in single if not written & {a.buffer for a in (*n.reads(), *n.writes())}]
        if not nest.inner and math.prod(nest.sizes) == 1 and len(changed.body) <= LONGEST:
            single.append(changed)
    return done


def drop_unread(nests: Sequence[Nest], unread: set[int]) -> list[Nest]:
    """Return nests without stores to some buffers, and without nests that store nothing then."""
    kept = []
    for nest in nests:
        stores = tuple(s for s in nest.stores if s.to.buffer not in unread)
        if stores or nest.reductions:
            kept.append(nest if len(stores) == len(nest.stores) else replace(nest, stores=stores))
    return kept


def _inline(nest: Nest, single: Sequence[Nest]) -> Nest:
    body: list[Instruction] = []
    free = 1 + max((i.out for i in nest.body), default=-1)
    results: dict[tuple[int, int], Argument] = {}  # by buffer and offset
    depth = len(nest.sizes)
    wanted = {(a.buffer, a.offset) for a in nest.reads() if not any(a.strides)}
    for n in single:
        if not any((s.to.buffer, s.to.offset) in wanted for s in n.stores):
            continue
        registers: dict[int, int] = {}

        def move(a: Argument, registers: dict[int, int] = registers) -> Argument:
            if isinstance(a, Register):
                return Register(registers[a.index])
            return replace(a, strides=(0,) * depth) if isinstance(a, Access) else a

        for i in n.body:
            arguments = tuple(map(move, i.arguments))
            registers[i.out], free = free, free + 1
            body.append(Instruction(i.operator, registers[i.out], arguments))
        results |= {(s.to.buffer, s.to.offset): move(s.value) for s in n.stores}

    def read(a: Argument) -> Argument:
        if isinstance(a, Access) and not any(a.strides):
            return results.get((a.buffer, a.offset), a)
        return a

    if not results:
        return nest
    body += [replace(i, arguments=tuple(map(read, i.arguments))) for i in nest.body]
    stores = tuple(Store(s.to, read(s.value)) for s in nest.stores)
    reductions = tuple(Reduction(r.operator, r.to, read(r.value)) for r in nest.reductions)
    return Nest(nest.sizes, nest.inner, tuple(body), stores, reductions)
