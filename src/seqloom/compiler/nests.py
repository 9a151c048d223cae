"""The loops of a nest, and its body while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from seqloom.compiler.indices import Index, variable
from seqloom.compiler.ir import Access, Argument, Instruction, Nest, Reduction, Register, Store


@dataclass(frozen=True)
class Span:
    """A part of a node's row: where it begins, and its sizes."""

    node: fx.Node
    start: tuple[int, ...]
    sizes: tuple[int, ...]

    def _names(self) -> list[str]:
        return [f"i{sum(v > 1 for v in self.sizes[:d])}" if v > 1 else "" for d, v in enumerate(self.sizes)]

    def loops(self) -> dict[str, int]:
        """Return the loops over the span: variables and their sizes."""
        return {name: size for name, size in zip(self._names(), self.sizes, strict=True) if name}

    def index(self) -> tuple[Index, ...]:
        """Return the element of the node that an iteration computes."""
        names = zip(self._names(), self.start, strict=True)
        return tuple(Index(start).plus(variable(name)) if name else Index(start) for name, start in names)

    def part(self, dim: int, low: int, high: int) -> Span:
        """Return the span from low to high in one dimension."""
        start = tuple(s + low if d == dim else s for d, s in enumerate(self.start))
        return Span(self.node, start, tuple(high - low if d == dim else v for d, v in enumerate(self.sizes)))

    def split(self, name: str, at: int) -> list[Span]:
        """Cut the span in two, at an iteration of the named loop."""
        dim = self._names().index(name)
        return [self.part(dim, 0, at), self.part(dim, at, self.sizes[dim])]


@dataclass
class Body:
    """The body of a nest while it is written."""

    level: int
    loops: dict[str, int]
    inner: int = 0
    known: dict[object, Argument] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    reductions: list[Reduction] = field(default_factory=list)

    def access(self, buffer: int, place: Index) -> Access:
        """Return the access to one element of a buffer's row."""
        factors = dict(place.terms)
        return Access(buffer, place.constant, tuple(factors.get(name, 0) for name in self.loops))

    def add(self, operator: str, *arguments: Argument) -> Argument:
        """Add an instruction, or return the register of an equal one."""
        if operator == "add":  # a + (-b) is a - b
            for one, other in (arguments, arguments[::-1]):
                if isinstance(other, Register) and self.instructions[other.index].operator == "neg":
                    return self.add("sub", one, *self.instructions[other.index].arguments)
        key = (operator, arguments)
        if key not in self.known:
            out = len(self.instructions)
            self.instructions.append(Instruction(operator, out, arguments))
            self.known[key] = Register(out)
        return self.known[key]

    def nest(self) -> Nest:
        """Return the nest, without instructions that nothing uses."""
        values = [s.value for s in self.stores] + [r.value for r in self.reductions]
        used = {v.index for v in values if isinstance(v, Register)}
        body = []
        for i in reversed(self.instructions):
            if i.out in used:
                used |= {a.index for a in i.arguments if isinstance(a, Register)}
                body.append(i)
        sizes = tuple(self.loops.values())
        return Nest(sizes, self.inner, tuple(reversed(body)), tuple(self.stores), tuple(self.reductions))
