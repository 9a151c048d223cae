"""Write the nests between two products as CUDA C++: iterations are spread over threads, with barriers where needed."""

from __future__ import annotations

import math
from collections.abc import Callable

from seqloom.compiler.cuda_writer import PLACES, CudaWriter, is_same, overlap, write_index, write_literal
from seqloom.compiler.ir import Access, Nest, Place, Register
from seqloom.compiler.staging import Staged

WARP = 32
SHORT = 4  # a single thread combines up to this many values
LONG = 256  # several warps combine this many values or more

_NEUTRAL = {"sum": 0.0, "maximum": -math.inf, "minimum": math.inf}


class Segments(CudaWriter):
    """The nests of each segment as a function that some threads of a block, the lanes, run for one row.

    Args:
        staged: The program.
        type_: The type of its numbers, by its name in the kernels.
        lanes: Threads for each row.
        rows: Rows of a block; each has a slot in shared memory.
    """

    def __init__(self, staged: Staged, type_: str, lanes: int, rows: int) -> None:
        super().__init__(staged, type_)
        self.lanes, self.rows, self.shared = lanes, rows, 0

    def reserve(self, numbers: int) -> int:
        """Reserve shared memory for `numbers` values; return its offset in bytes."""
        begin = -(-self.shared // 16) * 16
        self.shared = begin + numbers * (8 if self.type == "FP64" else 4)
        return begin

    def find_begin(self, number: int) -> str:
        """Return the code that moves the address of a buffer to a row."""
        buffer = self.staged.buffers[number]
        return "" if buffer.place is Place.WEIGHT else f" + rows.{PLACES[buffer.place]} * {buffer.size}"

    def emit_address(self, number: int) -> None:
        """Emit the address of a row of a buffer."""
        kind = "Real" if number in self.wide else "Number"
        self.emit(1, f"{kind}* const b{number} = read_address<{kind}>(table, {number}){self.find_begin(number)};")

    def emit_segment(self, n: int, nests: tuple[Nest, ...]) -> None:
        """Emit the function of a segment."""
        self.emit(0, f"DEV void run_segment_{n}(const i64* table, const Rows& rows, bool runs) {{")
        for number in sorted({a.buffer for nest in nests for a in (*nest.reads(), *nest.writes())}):
            self.emit_address(number)
        self.emit_nests(nests)
        self.emit(0, "}")

    def emit_nests(self, nests: tuple[Nest, ...]) -> None:
        """Emit nests, with barriers where a thread needs the results of another one."""
        since: list[Nest] = []  # nests since the last barrier
        for nest in nests:
            if any(_conflict(before, nest) for before in since):
                self.emit(1, "wait_block();")
                since = []
            since.append(nest)
            if nest.inner:
                self._emit_reduction(nest)
            else:
                self._emit_pointwise(nest)

    def load(self, nest: Nest) -> Callable[[Access], str]:
        """Return a function that returns the code of a load."""
        return lambda a: f"{self.name_load(a)}({write_address(a, nest)})"

    def emit_store(self, depth: int, to: Access, nest: Nest, value: str) -> None:
        """Emit a store."""
        self.emit(depth, f"{self.name_store(to)}({write_address(to, nest)}, {value});")

    def _emit_pointwise(self, nest: Nest) -> None:
        total = math.prod(nest.sizes)
        self.emit(1, f"for (int i = lane(); i < (runs ? {total} : 0); i += LANES) {{")
        self.emit_variables(2, nest.sizes, 0, "i")
        text = self.emit_body(2, nest, self.load(nest))
        values = [text(s.value) for s in nest.stores]
        for s, value in zip(nest.stores, values, strict=True):
            self.emit_store(2, s.to, nest, value)
        self.emit(1, "}")

    def _emit_reduction(self, nest: Nest) -> None:
        """Emit a loop in which a thread, a warp or several warps combine the values of one result."""
        outer, inner = nest.sizes[: -nest.inner], nest.sizes[-nest.inner :]
        total, length = math.prod(outer), math.prod(inner)
        if length <= SHORT or 2 * total >= self.lanes:
            self.emit(1, f"for (int i = lane(); i < (runs ? {total} : 0); i += LANES) {{")
            self._emit_combination(nest, outer, inner, "0", 1)
            self._emit_results(nest)
            self.emit(1, "}")
            return
        warps = self.lanes // WARP // total
        if warps > 1 and length >= LONG:
            self._emit_together(nest, outer, inner, warps)
            return
        warps, groups = self.lanes // WARP, min(self.lanes // WARP, len(nest.reductions))
        for k, single in enumerate(_separate(nest)):  # a warp combines the values of one result
            self.emit(1, f"for (int w = lane() / {WARP}, i = w / {groups}; w % {groups} == {k % groups} && ")
            self.emit(3, f"w < {warps // groups * groups} && i < (runs ? {total} : 0); i += {warps // groups}) {{")
            self._emit_combination(single, outer, inner, f"lane() % {WARP}", WARP)
            self.emit(2, f"s0 = op::{single.reductions[0].operator}_over_lanes(s0);")
            self.emit(2, f"if (lane() % {WARP} == 0) {{")
            self._emit_results(single)
            self.emit(2, "}")
            self.emit(1, "}")

    def _emit_together(self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], warps: int) -> None:
        """Emit the reductions of several warps and, after a barrier, the combination of their results by one thread."""
        total, count = math.prod(outer), len(nest.reductions)
        each = total * count * warps
        name = f"parts{self.shared}"
        self.emit(1, f"Real* const {name} = point_shared<Real>({self.reserve(self.rows * each)}) + slot() * {each};")
        self.emit(1, f"if (runs && lane() < {WARP * warps * total}) {{")
        self.emit(2, f"const int i = lane() / {WARP * warps}, part = lane() % {WARP * warps};")
        self._emit_combination(nest, outer, inner, "part", WARP * warps)
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"s{k} = op::{r.operator}_over_lanes(s{k});")
            self.emit(2, f"if (part % {WARP} == 0) {name}[(i * {count} + {k}) * {warps} + part / {WARP}] = s{k};")
        self.emit(1, "}")
        self.emit(1, "wait_block();")
        self.emit(1, f"for (int i = lane(); i < (runs ? {total} : 0); i += LANES) {{")
        self.emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"const Real* const of{k} = {name} + (i * {count} + {k}) * {warps};")
            self.emit(2, f"Real s{k} = of{k}[0];")
            self.emit(2, f"for (int j = 1; j < {warps}; j++) s{k} = op::{r.operator}(s{k}, of{k}[j]);")
        self._emit_results(nest)
        self.emit(1, "}")

    def _emit_combination(
        self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], first: str, stride: int
    ) -> None:
        """Emit the loop over the values that a thread combines."""
        self.emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"Real s{k} = {write_literal(_NEUTRAL[r.operator])};")
        self.emit(2, f"for (int j = {first}; j < {math.prod(inner)}; j += {stride}) {{")
        self.emit_variables(3, inner, len(outer), "j")
        text = self.emit_body(3, nest, self.load(nest))
        for k, r in enumerate(nest.reductions):
            self.emit(3, f"s{k} = op::{r.operator}(s{k}, {text(r.value)});")
        self.emit(2, "}")

    def _emit_results(self, nest: Nest) -> None:
        for k, r in enumerate(nest.reductions):
            self.emit_store(2, r.to, nest, f"s{k}")


def write_address(a: Access, nest: Nest) -> str:
    return f"b{a.buffer} + ({write_index(a, nest)})"


def _separate(nest: Nest) -> list[Nest]:
    """Split a nest into one for each reduction, with the instructions that it needs."""
    nests = []
    for r in nest.reductions:
        needed, values = set[int](), [r.value]
        body = []
        for i in reversed(nest.body):
            needed |= {v.index for v in values if isinstance(v, Register)}
            values = []
            if i.out in needed:
                body.append(i)
                values = list(i.arguments)
        nests.append(Nest(nest.sizes, nest.inner, tuple(reversed(body)), (), (r,)))
    return nests


def _conflict(before: Nest, after: Nest) -> bool:
    """Return whether a thread may need what another thread did in an earlier nest."""
    aligned = not before.inner and not after.inner and before.sizes == after.sizes

    def clash(a: Access, b: Access) -> bool:
        return a.buffer == b.buffer and overlap(a, b, before, after) and not (aligned and is_same(a, b))

    pairs = [(w, a) for w in before.writes() for a in (*after.reads(), *after.writes())]
    pairs += [(r, w) for r in before.reads() for w in after.writes()]
    return any(clash(a, b) for a, b in pairs)


def count_lanes(nest: Nest) -> int:
    """Return the threads that a nest can use, a multiple of a warp."""
    if not nest.inner:
        width = math.prod(nest.sizes)
    else:
        outer, length = math.prod(nest.sizes[: -nest.inner]), math.prod(nest.sizes[-nest.inner :])
        width = outer if length <= SHORT else outer * WARP
    return -(-width // WARP) * WARP
