"""Move the products of a program to buffers of one step, which a CUDA graph or a block's shared memory can hold.

A recorded product has fixed addresses, but the rows of a step move from step to step and the buffers from call to call.
Here every product reads and writes buffers of one step (`Place.ROW`), which belong to the recording; nests, which find
their rows by themselves, copy to and from the buffers of all steps. Products process all B rows, including those that
have ended; their results for these are not copied anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from seqloom.compiler.inlining import drop_unread, inline_single
from seqloom.compiler.ir import Access, Argument, Buffer, Instruction, Nest, Place, Product, Program, Reduction, Store
from seqloom.compiler.plan import BufferMemory, Scan


@dataclass(frozen=True)
class Segment:
    """Nests with no product between them, and the products that follow."""

    nests: tuple[Nest, ...]
    products: tuple[Product, ...]


@dataclass(frozen=True)
class Staged:
    """A program in segments; the last one has no products.

    Attributes:
        buffers: The program's buffers, then those that were added.
        memory: What each buffer is, as in `Scan`; two buffers of the same memory are different rows of it.
        segments: What a step computes.
        reverse: Whether steps run from the last to the first.
    """

    buffers: tuple[Buffer, ...]
    memory: tuple[BufferMemory, ...]
    segments: tuple[Segment, ...]
    reverse: bool
    products_inside: bool = False  # whether the kernel that runs the nests multiplies too

    def is_own(self, number: int) -> bool:
        """Return whether a buffer is only used within a step, so that its memory may belong to the recording."""
        return self.buffers[number].place is Place.ROW and self.memory[number].kind == "stored"

    def is_wide(self, number: int) -> bool:
        """Return whether a buffer holds values in the type of the computation: float even if the others have 16 bits.

        The range of float16 is too small for intermediate values such as 1 / deviation cubed.
        """
        if self.products_inside:
            return self.is_own(number)
        touched = (b for s in self.segments for p in s.products for b in (p.source, p.out))
        return self.is_own(number) and number not in touched


def stage(scan: Scan, products_inside: bool = False) -> Staged:
    """Divide a program into segments, with products on buffers of one step."""
    return _Staging(scan, products_inside).run()


class _Staging:
    def __init__(self, scan: Scan, products_inside: bool) -> None:
        self.program: Program = scan.program
        self.products_inside = products_inside
        self.buffers, self.memory = list(scan.program.buffers), list(scan.memory)
        self.factors: dict[tuple[int, int, int], int] = {}  # (buffer, offset, size) -> its copy
        self.results: dict[int, int] = {}  # buffer -> buffer to which the product writes
        self.mirrors: dict[int, int] = {}  # buffer -> further buffer to which nests write
        self.segments: list[tuple[list[Nest], list[Product]]] = [([], [])]
        nests = [part for part in scan.program.parts if isinstance(part, Nest)]
        written = {self.memory[a.buffer] for nest in nests for a in nest.writes()}
        states = {n for n, b in enumerate(self.buffers) if b.place in (Place.BEFORE, Place.AFTER)}
        # a kernel that also multiplies keeps the states that a step computes in shared memory
        self.at_hand = {n for n in states if self.memory[n] in written} if products_inside else set[int]()

    def run(self) -> Staged:
        self._find_mirrors()
        for part in self.program.parts:
            if isinstance(part, Nest):
                if self.segments[-1][1]:
                    self._begin_segment()
                self.segments[-1][0].append(self._redirect(part))
            else:
                self._add_product(part)
        if self.segments[-1][1]:
            self._begin_segment()
        segments = self._inline()
        return Staged(tuple(self.buffers), tuple(self.memory), segments, self.program.reverse, self.products_inside)

    def _inline(self) -> tuple[Segment, ...]:
        """Return the segments, with single values of a row computed where they are needed."""
        inlined = [(inline_single(nests), products) for nests, products in self.segments]
        read = {a.buffer for nests, _ in inlined for n in nests for a in n.reads()}
        read |= {p.source for _, products in inlined for p in products}
        unread = {n for n in range(len(self.buffers)) if self._is_own(n) and n not in read}
        return tuple(Segment(tuple(drop_unread(nests, unread)), tuple(products)) for nests, products in inlined)

    def _is_own(self, number: int) -> bool:
        return self.buffers[number].place is Place.ROW and self.memory[number].kind == "stored"

    def _add_buffer(self, name: str, size: int) -> int:
        self.buffers.append(Buffer(name, Place.ROW, size))
        self.memory.append(BufferMemory("stored", -len(self.buffers)))
        return len(self.buffers) - 1

    def _find_mirrors(self) -> None:
        """Find the factors that nests of the same step compute, so that these nests can write them twice."""
        parts = self.program.parts
        written = {a.buffer for part in parts if isinstance(part, Nest) for a in part.writes()}
        factors = dict.fromkeys(part.source for part in parts if isinstance(part, Product))
        for number in factors:
            if number in written and not self._is_own(number) and number not in self.at_hand:
                buffer = self.buffers[number]
                self.mirrors[number] = self._add_buffer(f"{buffer.name} of a step", buffer.size)

    def _begin_segment(self) -> None:
        """Begin the nests after products; copy the products' results to the buffers of all steps first."""
        copies = [_copy(self.results[p.out], 0, p.out, 0, self.buffers[p.out].size) for p in self._moved_results()]
        self.segments.append((copies, []))

    def _moved_results(self) -> list[Product]:
        pairs = {number: out for out, number in self.results.items()}
        return [replace(p, out=pairs[p.out]) for p in self.segments[-1][1] if p.out in pairs]

    def _add_product(self, p: Product) -> None:
        size = p.rows * p.heads * p.K
        source, offset = p.source, p.offset
        if source in self.results:
            source = self.results[source]
        elif source in self.mirrors:
            source = self.mirrors[source]
        elif not self._is_own(source) and source not in self.at_hand:
            key = source, offset, size
            if key not in self.factors:
                self.factors[key] = self._add_buffer(f"{self.buffers[source].name} as a factor", size)
                # no part of this step writes the source, so it can be copied before earlier products of the segment
                self.segments[-1][0].append(_copy(source, offset, self.factors[key], 0, size))
            source, offset = self.factors[key], 0
        out = p.out
        if not self._is_own(out):
            self.results[out] = self._add_buffer(f"{self.buffers[out].name} of a step", self.buffers[out].size)
            out = self.results[out]
        self.segments[-1][1].append(replace(p, source=source, offset=offset, out=out))

    def _redirect(self, nest: Nest) -> Nest:
        """Read the results of products from where they were written, and write factors twice."""

        def read(a: Argument) -> Argument:
            return replace(a, buffer=self.results.get(a.buffer, a.buffer)) if isinstance(a, Access) else a

        body = tuple(Instruction(i.operator, i.out, tuple(map(read, i.arguments))) for i in nest.body)
        stores = [Store(s.to, read(s.value)) for s in nest.stores]
        reductions = [Reduction(r.operator, r.to, read(r.value)) for r in nest.reductions]
        stores += [replace(s, to=replace(s.to, buffer=m)) for s in stores if (m := self.mirrors.get(s.to.buffer))]
        reductions += [
            replace(r, to=replace(r.to, buffer=m)) for r in reductions if (m := self.mirrors.get(r.to.buffer))
        ]
        return Nest(nest.sizes, nest.inner, body, tuple(stores), tuple(reductions))


def _copy(source: int, start: int, to: int, at: int, size: int) -> Nest:
    return Nest((size,), 0, (), (Store(Access(to, at, (1,)), Access(source, start, (1,))),))
