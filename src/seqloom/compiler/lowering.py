"""Lower the nodes of one loop to a program: levels of nests, with products between them.

Moves (views, slices, concatenations) are never executed: they change the indices by which others read. A value is
computed where it is used; it is written to memory if a product or a reduction needs it there, if a later level uses
it and it is costly, or if the caller wants it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from seqloom.compiler.indices import ZERO, Index, flatten, variable
from seqloom.compiler.ir import Argument, Buffer, Nest, Place, Product, Program, Reduction, Store
from seqloom.compiler.moves import NeedsBufferError, StraddleError, broadcast, follow, keeps_rows
from seqloom.compiler.nests import Body, Span
from seqloom.compiler.nodes import (
    COSTLY,
    SUMS,
    VIEWS,
    UnsupportedError,
    batch,
    check_known,
    constant_value,
    count,
    kind,
    line_of,
    name_of,
    operands,
    reduced_dims,
    row,
    shape,
    title_of,
)
from seqloom.compiler.points import add_point
from seqloom.compiler.prune import prune

MOST_PIECES = 16  # vectors of more units than this are not cut into units


@dataclass(frozen=True)
class BufferSource:
    """Where the memory of a buffer comes from.

    Attributes:
        kind: "state" (number `index`), "gradient" (of state `index`), "value" (of a node that torch computes, or an
            input), "weight" (the same, as the right factor of a product), "stored" (written by the program).
        node: The node, for values, weights and what is stored.
        index: The number of a state.
        transposed: For weights: whether the node holds (N, K).
    """

    kind: str
    node: fx.Node | None = None
    index: int = 0
    transposed: bool = False


@dataclass
class Lowered:
    """A program, and where the memory of its buffers comes from."""

    program: Program
    sources: list[BufferSource]


def lower(
    nodes: Sequence[fx.Node],
    wanted: Mapping[fx.Node, BufferSource],
    memory: Mapping[fx.Node, tuple[BufferSource, Place]],
    saved: Iterable[fx.Node],
    unit: int,
    reverse: bool,
) -> Lowered:
    """Lower one loop.

    Args:
        nodes: The nodes that the loop computes, in order.
        wanted: Nodes of the loop whose results have their own buffer, such as the new states.
        memory: Nodes outside the loop that lie in memory before the step begins, besides those that torch computes.
        saved: Nodes of the loop to keep for all steps.
        unit: The hidden size; longer vectors are cut into such units, so that gates share a loop.
        reverse: Whether the loop runs backwards in time.

    Raises:
        UnsupportedError: If a node is not known, or moves elements in a way that cannot be expressed by indices.
    """
    for n in nodes:
        check_known(n)
    return _Lowering(nodes, wanted, memory, set(saved), unit, reverse).run()


class _Lowering:
    def __init__(
        self,
        nodes: Sequence[fx.Node],
        wanted: Mapping[fx.Node, BufferSource],
        memory: Mapping[fx.Node, tuple[BufferSource, Place]],
        saved: set[fx.Node],
        unit: int,
        reverse: bool,
    ) -> None:
        self.order, self.inside = list(nodes), set(nodes)
        self.wanted, self.memory, self.saved, self.unit, self.reverse = dict(wanted), dict(memory), saved, unit, reverse
        self.forced: set[fx.Node] = set()
        self.users = {n: [u for u in n.users if u in self.inside] for n in self.order}
        # a value that is copied to a separate buffer can be read there
        self.copies = {operands(n)[0]: n for n in wanted if operands(n)[0] in self.inside and name_of(n) == "clone"}

    def run(self) -> Lowered:
        while True:
            self.buffers: list[Buffer] = []
            self.sources: list[BufferSource] = []
            self.numbers: dict[tuple[BufferSource, Place], int] = {}
            try:
                self._place()
                parts = self._emit()
            except NeedsBufferError as need:
                n = need.node
                if n in self.forced or n not in self.inside:
                    raise UnsupportedError(
                        f"{name_of(n)}{line_of(n)} moves numbers in a way that the compiler cannot follow"
                    ) from None
                self.forced.add(n)
                continue
            program, left = prune(Program(tuple(self.buffers), tuple(parts), self.reverse))
            return Lowered(program, [self.sources[b] for b in left])

    # --- levels and places ---

    def _place(self) -> None:
        """Find the level at which each node is computed, and which nodes are written to memory."""
        self.level: dict[fx.Node, int] = {}
        ready: dict[fx.Node, int] = {}
        for n in self.order:
            self.level[n] = max([ready.get(a, 0) for a in n.all_input_nodes], default=0)
            ends_level = kind(n) in ("product", "contraction", "sum") or n in self.forced or self._is_shared_number(n)
            ready[n] = self.level[n] + ends_level
        store = set(self.wanted) | self.forced | self.saved
        store |= {n for n in self.order if self._is_shared_number(n)}
        for n in self.order:
            if kind(n) == "product" and self._find_factor(self._factor(n)) is None:
                store.add(self._factor(n))
        last_use = dict.fromkeys(self.order, -1)  # the last level at which a value is needed, even as part of others
        for n in reversed(self.order):
            for u in self.users[n]:
                inline = kind(u) in ("move", "point") and u not in store
                last_use[n] = max(last_use[n], last_use[u] if inline and self.users[u] else -1, self.level[u])
        for n in self.order:
            k = kind(n)
            later = k == "point" and name_of(n) in COSTLY and last_use[n] > ready[n]
            if k in ("product", "contraction", "sum") or later:
                store.add(n)
        self.stored = [n for n in self.order if n in store]
        self.is_stored = set(self.stored)

    def _is_shared_number(self, n: fx.Node) -> bool:
        """Return whether a node is a single costly value of a row that vectors use, such as 1 / deviation."""
        if kind(n) != "point" or name_of(n) not in COSTLY or count(n) > 1:
            return False
        return any(count(u) > 1 for u in self.users[n] if isinstance(u.meta["val"], torch.Tensor))

    def _factor(self, n: fx.Node) -> fx.Node:
        """Return the factor of a product that depends on the row."""
        a, b = operands(n)[:2]
        return a if batch(a) is not None else b

    def _in_memory(self, n: fx.Node) -> bool:
        """Return whether a node outside the loop lies in memory before the step begins."""
        return n not in self.inside and (n in self.memory or kind(n) not in ("move", "constant"))

    def _is_loaded(self, n: fx.Node, level: int) -> bool:
        return self._in_memory(n) or (n in self.is_stored and self.level[n] < level)

    def _has_buffer(self, n: fx.Node) -> bool:
        is_result = kind(n) in ("product", "sum", "contraction") or n in self.forced or n in self.wanted
        return is_result or self._in_memory(n)

    def _find_factor(self, n: fx.Node) -> tuple[fx.Node, int] | None:
        """Return where a product's factor already lies contiguously: a node in memory, and an offset."""
        names = [f"i{d}" for d in range(len(row(n)))]
        loops = dict(zip(names, row(n), strict=True))
        idx = tuple(variable(name) if size > 1 else ZERO for name, size in loops.items())
        whole, base = flatten(idx, row(n)), n
        try:
            while not self._has_buffer(base):
                if kind(base) != "move":
                    return None
                if name_of(base) in VIEWS and self._has_buffer(operands(base)[0]) and keeps_rows(base):
                    at = flatten(idx, row(base))
                    return (operands(base)[0], at.constant - whole.constant) if at.terms == whole.terms else None
                place, idx = follow(base, idx, loops)
                if not isinstance(place, fx.Node):
                    return None
                base = place
        except (NeedsBufferError, StraddleError):
            return None
        at = flatten(idx, row(base))
        return (base, at.constant - whole.constant) if at.terms == whole.terms else None

    # --- buffers ---

    def _number(self, source: BufferSource, buffer: Buffer) -> int:
        key = source, buffer.place
        if key not in self.numbers:
            self.numbers[key] = len(self.buffers)
            self.buffers.append(buffer)
            self.sources.append(source)
        return self.numbers[key]

    def _buffer_of(self, n: fx.Node) -> int:
        """Return the number of the buffer that holds a node."""
        if n in self.memory:
            source, place = self.memory[n]
        elif n in self.wanted:
            source = self.wanted[n]
            place = Place.BEFORE if self.reverse else Place.AFTER
        elif n in self.inside:
            source, place = BufferSource("stored", n), Place.TIME if n in self.saved else Place.ROW
        else:
            source, place = BufferSource("value", n), Place.TIME if batch(n) is not None else Place.WEIGHT
        size = count(n) if batch(n) is not None else math.prod(shape(n))
        return self._number(source, Buffer(title_of(n), place, size))

    # --- emission ---

    def _emit(self) -> list[Product | Nest]:
        parts: list[Product | Nest] = []
        for level in range(1 + max([self.level[n] for n in self.stored], default=0)):
            here = [n for n in self.stored if self.level[n] == level]
            nests = [n for n in here if kind(n) != "product"]
            if nests:
                parts += self._emit_nests(nests, level)
            parts += [self._emit_product(n) for n in here if kind(n) == "product"]
        return parts

    def _emit_product(self, n: fx.Node) -> Product:
        a, w = operands(n)[:2]
        assert isinstance(a, fx.Node) and isinstance(w, fx.Node)
        left = batch(a) is None  # weight @ rows
        factor, weight = (w, a) if left else (a, w)
        source, offset = self._find_factor(factor) or (factor, 0)
        heads = row(n)[0] if name_of(n) == "bmm" else 1
        d = batch(n)
        if d is None or (name_of(n) == "bmm" and d == 0):
            raise UnsupportedError(
                f"step multiplies rows of the batch in a way that the compiler does not know{line_of(n)}"
            )
        rows = row(n)[d]
        K = row(factor)[-2] if left else row(factor)[-1]
        N = row(n)[-2] if left else row(n)[-1]
        if rows > 1 and (left or heads > 1):
            raise UnsupportedError(
                f"step multiplies several rows at once in a way that the compiler does not know{line_of(n)}"
            )
        number = self._number(
            BufferSource("weight", weight, transposed=left), Buffer(title_of(weight), Place.WEIGHT, heads * K * N)
        )
        return Product(self._buffer_of(source), offset, number, self._buffer_of(n), heads, K, N, rows)

    def _emit_nests(self, nodes: Sequence[fx.Node], level: int) -> list[Nest]:
        """Emit the code that stores the results of one level; nodes over the same sizes share their loops."""
        bodies: dict[tuple[int, ...], Body] = {}
        todo = [piece for n in nodes if kind(n) not in ("sum", "contraction") for piece in self._cut(n)]
        while todo:
            span = todo.pop(0)
            body = bodies.setdefault(tuple(v for v in span.sizes if v > 1), Body(level, span.loops()))
            try:
                value = self._compute(span.node, span.index(), body)
            except StraddleError as cut:  # the instructions added so far are dropped unless others use them
                todo[:0] = span.split(cut.name, cut.at)
                continue
            to = body.access(self._buffer_of(span.node), flatten(span.index(), row(span.node)))
            body.stores.append(Store(to, value))
        nests = [body.nest() for body in bodies.values() if body.stores]
        return nests + self._emit_reductions([n for n in nodes if kind(n) in ("sum", "contraction")], level)

    def _cut(self, n: fx.Node) -> list[Span]:
        """Cut a vector of several units into units, so that gates share a loop."""
        sizes = row(n)
        large = [d for d, v in enumerate(sizes) if v > 1]
        whole = Span(n, (0,) * len(sizes), sizes)
        if len(large) != 1 or sizes[large[0]] % self.unit or not 1 < sizes[large[0]] // self.unit <= MOST_PIECES:
            return [whole]
        return [whole.part(large[0], at, at + self.unit) for at in range(0, sizes[large[0]], self.unit)]

    def _emit_reductions(self, nodes: Sequence[fx.Node], level: int) -> list[Nest]:
        groups: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None], list[fx.Node]] = {}
        for n in nodes:
            if kind(n) == "contraction":
                inner = (row(operands(n)[0])[-1],)
                groups.setdefault((row(n), inner, None), []).append(n)
                continue
            sizes, dims = row(operands(n)[0]), tuple(reduced_dims(n))
            if batch(operands(n)[0]) in dims:
                raise UnsupportedError(f"step sums over the batch{line_of(n)}")
            outer = tuple(1 if d in dims else v for d, v in enumerate(sizes))
            groups.setdefault((outer, tuple(sizes[d] for d in dims), dims), []).append(n)
        return [nest for key, group in groups.items() for nest in self._reduce(group, key, level)]

    def _reduce(
        self,
        nodes: Sequence[fx.Node],
        key: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None],
        level: int,
    ) -> list[Nest]:
        """Emit reductions over the same loops as one nest, or one each where their loops cannot be shared."""
        outer, inner, dims = key
        loops = Span(nodes[0], (0,) * len(outer), outer).loops()
        summed = {f"k{i}": size for i, size in enumerate(inner)}
        body = Body(level + 1, loops | summed, inner=len(inner))  # after the level's other nests, whose stores it reads
        out = Span(nodes[0], (0,) * len(outer), outer).index()
        try:
            for n in nodes:
                body.reductions.append(self._reduction(n, out, summed, dims, outer, body))
        except StraddleError:
            if len(nodes) > 1:
                return [nest for n in nodes for nest in self._reduce([n], key, level)]
            raise NeedsBufferError(operands(nodes[0])[0]) from None
        return [body.nest()]

    def _reduction(
        self,
        n: fx.Node,
        out: tuple[Index, ...],
        summed: Mapping[str, int],
        dims: tuple[int, ...] | None,
        outer: tuple[int, ...],
        body: Body,
    ) -> Reduction:
        k = [variable(name) if size > 1 else ZERO for name, size in summed.items()]
        value: Argument
        if dims is None:
            a, b = operands(n)[:2]
            left = self._value(a, (*out[:-1], k[0]), body)
            right = self._value(b, (*out[:-2], k[0], out[-1]), body)
            value, operator, to = body.add("mul", left, right), "sum", flatten(out, row(n))
        else:
            idx = list(out)
            for d, i in zip(dims, k, strict=True):
                idx[d] = i
            value, operator, to = self._value(operands(n)[0], tuple(idx), body), SUMS[name_of(n)], flatten(out, outer)
        return Reduction(operator, body.access(self._buffer_of(n), to), value)

    # --- values ---

    def _value(self, n: fx.Node | float, idx: tuple[Index, ...], body: Body) -> Argument:
        """Return an element of a node; the instructions that compute it are added to the body."""
        if not isinstance(n, fx.Node):
            return float(n)
        if (n, idx) in body.known:
            return body.known[n, idx]
        place = next((p for p in (n, self.copies.get(n, n)) if self._is_loaded(p, body.level)), None)
        if place is not None:
            value: Argument = body.access(self._buffer_of(place), flatten(idx, row(n)))
        else:
            value = self._compute(n, idx, body)
        body.known[n, idx] = value
        return value

    def _compute(self, n: fx.Node, idx: tuple[Index, ...], body: Body) -> Argument:
        """Return an element of a node by its own expression."""
        key = (n, idx, "computed")
        if key not in body.known:
            body.known[key] = self._express(n, idx, body)
        return body.known[key]

    def _express(self, n: fx.Node, idx: tuple[Index, ...], body: Body) -> Argument:
        what = kind(n)
        if what == "constant":
            return constant_value(n)
        if name_of(n) in VIEWS and self._is_loaded(operands(n)[0], body.level) and keeps_rows(n):
            return body.access(self._buffer_of(operands(n)[0]), flatten(idx, row(n)))
        if what == "move":
            return self._value(*follow(n, idx, body.loops), body)
        if what == "point":
            return self._point(n, idx, body)
        raise NeedsBufferError(n)

    def _point(self, n: fx.Node, idx: tuple[Index, ...], body: Body) -> Argument:
        arguments = [
            self._value(a, broadcast(a, idx) if isinstance(a, fx.Node) else (), body)
            if isinstance(a, (fx.Node, int, float))
            else None
            for a in operands(n)
        ]
        return add_point(n, arguments, body)
