"""Remove from a program what nothing reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from seqloom.compiler.ir import Access, Argument, Instruction, Nest, Place, Product, Program, Register


def prune(program: Program) -> tuple[Program, list[int]]:
    """Remove writes to scratch memory that nothing reads, and what only they need.

    Args:
        program: The program. Buffers at `Place.ROW` hold values of one step; all others are results.

    Returns:
        The program, and the numbers of the buffers that are left.
    """
    parts = list(program.parts)
    while True:
        read = _read_buffers(parts)

        def is_needed(buffer: int, read: frozenset[int] = read) -> bool:
            return buffer in read or program.buffers[buffer].place is not Place.ROW

        shorter = [_shorten(part, is_needed) for part in parts]
        remaining = [part for part in shorter if part is not None]
        if remaining == parts:
            break
        parts = remaining
    used = sorted(_read_buffers(parts) | Program((), tuple(parts)).list_written())
    number = {old: new for new, old in enumerate(used)}
    buffers = tuple(program.buffers[b] for b in used)
    return Program(buffers, tuple(_renumber(part, number) for part in parts), program.reverse), used


def _read_buffers(parts: list[Product | Nest]) -> frozenset[int]:
    read: set[int] = set()
    for part in parts:
        read |= {part.source, part.weight} if isinstance(part, Product) else {a.buffer for a in part.reads()}
    return frozenset(read)


def _shorten(part: Product | Nest, is_needed: Callable[[int], bool]) -> Product | Nest | None:
    if isinstance(part, Product):
        return part if is_needed(part.out) else None
    stores = tuple(s for s in part.stores if is_needed(s.to.buffer))
    reductions = tuple(r for r in part.reductions if is_needed(r.to.buffer))
    if not stores and not reductions:
        return None
    values = [s.value for s in stores] + [r.value for r in reductions]
    used = {v.index for v in values if isinstance(v, Register)}
    body: list[Instruction] = []
    for i in reversed(part.body):
        if i.out in used:
            used |= {a.index for a in i.arguments if isinstance(a, Register)}
            body.insert(0, i)
    return replace(part, body=tuple(body), stores=stores, reductions=reductions)


def _renumber(part: Product | Nest, number: dict[int, int]) -> Product | Nest:
    if isinstance(part, Product):
        return replace(part, source=number[part.source], weight=number[part.weight], out=number[part.out])

    def access(a: Access) -> Access:
        return replace(a, buffer=number[a.buffer])

    def argument(a: Argument) -> Argument:
        return access(a) if isinstance(a, Access) else a

    return replace(
        part,
        body=tuple(replace(i, arguments=tuple(map(argument, i.arguments))) for i in part.body),
        stores=tuple(replace(s, to=access(s.to), value=argument(s.value)) for s in part.stores),
        reductions=tuple(replace(r, to=access(r.to), value=argument(r.value)) for r in part.reductions),
    )
