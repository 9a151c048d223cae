"""Write the nests of a program as CUDA C++.

All nests between two products become one kernel, with a block for each row and threads over the iterations. The nests
after the last product and those before the first product of the next step share a kernel. A program without products
becomes one kernel that walks over time; if every thread only needs what it wrote itself, rows and units are spread over
all blocks, states stay in registers, and inputs of several steps are loaded in advance.

Sizes are constants in the text; the batch, the number of steps and all addresses come from a table in the GPU's memory
(kernels/cuda/compiled/table.cuh).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from seqloom.compiler.ir import Access, Argument, Nest, Place, Register
from seqloom.compiler.plan import Scan
from seqloom.compiler.staging import Staged, stage

TYPES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
WARP = 32
MOST_THREADS = 512  # of a block that takes one row
FLAT_THREADS = 128  # of a block that takes any units of any rows
FLAT_REGISTERS = 48  # for numbers that a thread loads in advance
DEEPEST = 8  # steps whose inputs are loaded in advance
SHORT = 4  # a thread combines up to so many numbers by itself
LONG = 64  # several warps combine so many numbers and more

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_TRUTH = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
_PATTERNS = {
    "neg": "-{0}",
    "abs": "op::absolute({0})",
    "copy": "{0}",
    "not": "Real({0} == Real(0))",
    "and": "Real({0} != Real(0) && {1} != Real(0))",
    "or": "Real({0} != Real(0) || {1} != Real(0))",
    "where": "op::select({0}, {1}, {2})",
    **{name: f"{{0}} {sign} {{1}}" for name, sign in _INFIX.items()},
    **{name: f"Real({{0}} {sign} {{1}})" for name, sign in _TRUTH.items()},
}
_NEUTRAL = {"sum": 0.0, "maximum": -math.inf, "minimum": math.inf}
_PLACES = {Place.ROW: "row", Place.TIME: "time", Place.BEFORE: "before", Place.AFTER: "after"}
_OTHER_SIDE = {Place.BEFORE: Place.AFTER, Place.AFTER: Place.BEFORE}

PRELUDE = """\
#include "compiled/operators.cuh"
#include "compiled/table.cuh"
constexpr int TYPE = {type}, THREADS = {threads};
typedef Numbers<TYPE>::Stored Number;
typedef Numbers<TYPE>::Real Real;
DEV Real load(const Number* from) {{ return widen<TYPE>(get_constant(from)); }}
DEV Real load_written(const Number* from) {{ return widen<TYPE>(*from); }}
DEV Real load_wide(const Real* from) {{ return *from; }}
DEV void store(Number* to, Real v) {{ *to = narrow<TYPE>(v); }}
DEV void store_wide(Real* to, Real v) {{ *to = v; }}
DEV Real round_to_type(Real v) {{ return widen<TYPE>(narrow<TYPE>(v)); }}
"""
SEGMENT_KERNEL = """\
constexpr int SEGMENT_{n}_BYTES = {shared};
KERNEL(segment_{n}, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 row = block(), t = h.base {sign} a.k;
  if (has_step(h, t, row)) run_segment_{n}(a.table, find_rows(h, t, row));
}}
"""
TURN_KERNEL = """\
constexpr int TURN_BYTES = {shared};
KERNEL(turn, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 row = block(), t = h.base {sign} a.k;
  if (has_step(h, t, row)) run_segment_{last}(a.table, find_rows(h, t, row));
  if (!a.has_next || !has_step(h, t {sign} 1, row)) return;
  wait_block();
  run_segment_0(a.table, find_rows(h, t {sign} 1, row));
}}
"""
ROW_SCAN_KERNEL = """\
constexpr int SCAN_BYTES = {shared};
KERNEL(scan, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 row = block(), steps = count_steps(h, row);
  for (i64 i = 0; i < steps; i++) {{
    run_segment_0(a.table, find_rows(h, {t}, row));
    wait_block();
  }}
}}
"""


@dataclass(frozen=True)
class CudaText:
    """The kernels of a program.

    Without products there is one kernel, `scan`. Otherwise there is `segment_i` for each segment with nests but the
    last, and `turn` for the last segment followed by the first one of the next step.

    Attributes:
        text: The CUDA C++.
        staged: The program in segments, whose buffers are the table's.
        threads: Of each block.
        shared: Bytes of shared memory of each block.
        units: Threads of a row where blocks take any units of any rows; 0 where a block takes one row.
    """

    text: str
    staged: Staged
    threads: int
    shared: int = 0
    units: int = 0

    @cached_property
    def digest(self) -> str:
        """A name that differs between different programs."""
        return hashlib.sha256(repr((self.text, self.staged)).encode()).hexdigest()


def write_cuda(scan: Scan, dtype: str) -> CudaText:
    """Write a program for one type of numbers: "float32", "float64", "bfloat16" or "float16"."""
    staged = stage(scan)
    if len(staged.segments) == 1:
        flat = _FlatScan(staged, TYPES[dtype])
        if flat.is_possible():
            return CudaText(flat.write(), staged, FLAT_THREADS, units=flat.units)
    return _Segments(staged, TYPES[dtype]).write()


class _Writer:
    """What both ways of writing a program share."""

    def __init__(self, staged: Staged, type_: str) -> None:
        self.staged, self.type, self.lines = staged, type_, list[str]()
        self.sign = "-" if staged.reverse else "+"
        nests = [nest for segment in staged.segments for nest in segment.nests]
        self.written = {staged.memory[a.buffer] for nest in nests for a in nest.writes()}

        self.wide = {i for i in range(len(staged.buffers)) if staged.is_wide(i)}

    def _is_written(self, a: Access) -> bool:
        return self.staged.memory[a.buffer] in self.written

    def _name_load(self, a: Access) -> str:
        return "load_wide" if a.buffer in self.wide else "load_written" if self._is_written(a) else "load"

    def _name_store(self, a: Access) -> str:
        return "store_wide" if a.buffer in self.wide else "store"

    def _emit_address(self, number: int, table: str, begin: str = "") -> None:
        kind = "Real" if number in self.wide else "Number"
        self._emit(1, f"{kind}* const b{number} = read_address<{kind}>({table}, {number}){begin};")

    def _emit(self, depth: int, line: str) -> None:
        self.lines.append("  " * depth + line)

    def _emit_variables(self, depth: int, sizes: tuple[int, ...], first: int, flat: str) -> None:
        """Emit the loop variables that a flat index stands for."""
        for k, size in enumerate(sizes):
            inner = math.prod(sizes[k + 1 :])
            quotient = flat if inner == 1 else f"{flat} / {inner}"
            self._emit(depth, f"const int i{first + k} = {quotient}{f' % {size}' if k else ''};")

    def _emit_body(self, depth: int, nest: Nest, load: Callable[[Access], str]) -> Callable[[Argument], str]:
        """Emit the instructions; return what gives the text of an argument."""
        names: dict[Access, str] = {}

        def text(a: Argument) -> str:
            if isinstance(a, Register):
                return f"r{a.index}"
            if not isinstance(a, Access):
                return _literal(a)
            if a not in names:
                names[a] = f"v{len(names)}"
                self._emit(depth, f"const Real {names[a]} = {load(a)};")
            return names[a]

        for i in nest.body:
            arguments = [text(a) for a in i.arguments]
            pattern = _PATTERNS.get(i.operator)
            value = pattern.format(*arguments) if pattern else f"op::{i.operator}({', '.join(arguments)})"
            self._emit(depth, f"const Real r{i.out} = {value};")
        return text


class _Segments(_Writer):
    """Kernels with a block for each row."""

    def write(self) -> CudaText:
        segments = self.staged.segments
        self.threads = min(MOST_THREADS, max([WARP, *(_width(n) for s in segments for n in s.nests)]))
        self.shared = 0
        for n, segment in enumerate(segments):
            self._emit_segment(n, segment.nests)
        text = PRELUDE.format(type=self.type, threads=self.threads) + "\n".join(self.lines) + "\n"
        if len(segments) == 1:
            text += ROW_SCAN_KERNEL.format(shared=self.shared, t="steps - 1 - i" if self.staged.reverse else "i")
        else:
            for n, segment in enumerate(segments[:-1]):
                text += SEGMENT_KERNEL.format(n=n, shared=self.shared, sign=self.sign) if segment.nests else ""
            text += TURN_KERNEL.format(last=len(segments) - 1, shared=self.shared, sign=self.sign)
        return CudaText(text, self.staged, self.threads, self.shared)

    def _emit_segment(self, n: int, nests: tuple[Nest, ...]) -> None:
        self._emit(0, f"DEV void run_segment_{n}(const i64* table, const Rows& rows) {{")
        for number in sorted({a.buffer for nest in nests for a in (*nest.reads(), *nest.writes())}):
            buffer = self.staged.buffers[number]
            begin = "" if buffer.place is Place.WEIGHT else f" + rows.{_PLACES[buffer.place]} * {buffer.size}"
            self._emit_address(number, "table", begin)
        since: list[Nest] = []  # the last barrier
        for nest in nests:
            if any(_conflict(before, nest) for before in since):
                self._emit(1, "wait_block();")
                since = []
            since.append(nest)
            if nest.inner:
                self._emit_reduction(nest)
            else:
                self._emit_pointwise(nest)
        self._emit(0, "}")

    def _load(self, nest: Nest) -> Callable[[Access], str]:
        return lambda a: f"{self._name_load(a)}({_address(a, nest)})"

    def _emit_pointwise(self, nest: Nest) -> None:
        total = math.prod(nest.sizes)
        self._emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
        self._emit_variables(2, nest.sizes, 0, "i")
        text = self._emit_body(2, nest, self._load(nest))
        values = [text(s.value) for s in nest.stores]
        for s, value in zip(nest.stores, values, strict=True):
            self._emit(2, f"{self._name_store(s.to)}({_address(s.to, nest)}, {value});")
        self._emit(1, "}")

    def _emit_reduction(self, nest: Nest) -> None:
        """Emit a loop in which a thread, a warp or several warps combine the numbers of one result."""
        outer, inner = nest.sizes[: -nest.inner], nest.sizes[-nest.inner :]
        total, length = math.prod(outer), math.prod(inner)
        if length <= SHORT or 2 * total >= self.threads:
            self._emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
            self._emit_combination(nest, outer, inner, "0", 1)
            self._emit_results(nest)
            self._emit(1, "}")
            return
        warps = self.threads // WARP // total
        if warps > 1 and length >= LONG and self.type != "FP64":
            self._emit_together(nest, outer, inner, warps)
            return
        self._emit(1, f"for (int i = thread() / {WARP}; i < {total}; i += THREADS / {WARP}) {{")
        self._emit_combination(nest, outer, inner, f"thread() % {WARP}", WARP)
        for k, r in enumerate(nest.reductions):
            self._emit(2, f"s{k} = op::{r.operator}_over_lanes(s{k});")
        self._emit(2, f"if (thread() % {WARP} == 0) {{")
        self._emit_results(nest)
        self._emit(2, "}")
        self._emit(1, "}")

    def _emit_together(self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], warps: int) -> None:
        """Emit what each of several warps combines, then, past a barrier, what a thread makes of their results."""
        total, count = math.prod(outer), len(nest.reductions)
        shared, self.shared = self.shared, self.shared + 4 * total * count * warps
        self._emit(1, f"if (thread() < {WARP * warps * total}) {{")
        self._emit(2, f"const int i = thread() / {WARP * warps}, part = thread() % {WARP * warps};")
        self._emit_combination(nest, outer, inner, "part", WARP * warps)
        for k, r in enumerate(nest.reductions):
            at = f"{shared} + 4 * ((i * {count} + {k}) * {warps} + part / {WARP})"
            self._emit(2, f"s{k} = op::{r.operator}_over_lanes(s{k});")
            self._emit(2, f"if (part % {WARP} == 0) put_shared(shared_memory() + {at}, s{k});")
        self._emit(1, "}")
        self._emit(1, "wait_block();")
        self._emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
        self._emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self._emit(2, f"const u32 at{k} = shared_memory() + {shared} + 4 * ((i * {count} + {k}) * {warps});")
            self._emit(2, f"Real s{k} = get_shared(at{k});")
            self._emit(
                2, f"for (int j = 1; j < {warps}; j++) s{k} = op::{r.operator}(s{k}, get_shared(at{k} + 4 * j));"
            )
        self._emit_results(nest)
        self._emit(1, "}")

    def _emit_combination(
        self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], first: str, stride: int
    ) -> None:
        """Emit the loop over the numbers that a thread combines."""
        self._emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self._emit(2, f"Real s{k} = {_literal(_NEUTRAL[r.operator])};")
        self._emit(2, f"for (int j = {first}; j < {math.prod(inner)}; j += {stride}) {{")
        self._emit_variables(3, inner, len(outer), "j")
        text = self._emit_body(3, nest, self._load(nest))
        for k, r in enumerate(nest.reductions):
            self._emit(3, f"s{k} = op::{r.operator}(s{k}, {text(r.value)});")
        self._emit(2, "}")

    def _emit_results(self, nest: Nest) -> None:
        for k, r in enumerate(nest.reductions):
            self._emit(2, f"{self._name_store(r.to)}({_address(r.to, nest)}, s{k});")


class _FlatScan(_Writer):
    """One kernel over time in which a thread needs only what it wrote itself."""

    def __init__(self, staged: Staged, type_: str) -> None:
        super().__init__(staged, type_)
        self.nests = staged.segments[0].nests

    @property
    def units(self) -> int:
        return math.prod(self.nests[0].sizes)

    def is_possible(self) -> bool:
        if not self.nests or any(n.inner or n.sizes != self.nests[0].sizes for n in self.nests):
            return False
        memory = self.staged.memory
        reads = [a for n in self.nests for a in n.reads()]
        writes = [a for n in self.nests for a in n.writes()]
        return not any(
            memory[w.buffer] == memory[a.buffer] and not _is_same(w, a) and _overlap(w, a, self.nests[0])
            for w in writes
            for a in (*reads, *writes)
        )

    def write(self) -> str:
        nest = self.nests[0]
        self._sort_reads()
        self.lines = [PRELUDE.format(type=self.type, threads=FLAT_THREADS).rstrip()]
        self._emit(0, "constexpr int SCAN_BYTES = 0;")
        self._emit(0, "KERNEL(scan, StepArguments, THREADS) {")
        self._emit(1, "const Head h = read_head(a.table);")
        self._emit(1, "const i64 at = (i64)block() * THREADS + thread();")
        self._emit(1, f"const i64 row = at / {self.units};")
        self._emit(1, "if (row >= h.B) return;")
        self._emit(1, f"const int i = (int)(at % {self.units});")
        self._emit_variables(1, nest.sizes, 0, "i")
        self._emit(1, "const i64 steps = count_steps(h, row);")
        self._emit(1, "if (!steps) return;")
        for number in range(len(self.staged.buffers)):
            self._emit_address(number, "a.table")
        self._emit(1, f"Rows rows = find_rows(h, {'steps - 1' if self.staged.reverse else '0'}, row);")
        for a, name in self.fixed.items():
            self._emit(1, f"const Real {name} = load({self._place(a)});")
        for a, name in self.carried.items():
            self._emit(1, f"Real {name} = load_written({self._place(a)});")
        self._emit_loop()
        self._emit(0, "}")
        return "\n".join(self.lines) + "\n"

    def _sort_reads(self) -> None:
        """Find what is loaded once, what stays in a register from step to step, and what is loaded in advance."""
        self.fixed: dict[Access, str] = {}
        self.carried: dict[Access, str] = {}
        self.early: dict[Access, str] = {}
        for a in dict.fromkeys(a for n in self.nests for a in n.reads()):
            place = self.staged.buffers[a.buffer].place
            if not self._is_written(a):
                names = self.fixed if place in (Place.WEIGHT, Place.ROW) else self.early
                names[a] = f"{'f' if names is self.fixed else 'p'}{len(names)}"
            elif self._carries(a):
                self.carried[a] = f"c{len(self.carried)}"

    def _carries(self, a: Access) -> bool:
        return any(self._is_next(a, s.to) for n in self.nests for s in n.stores)

    def _is_next(self, a: Access, to: Access) -> bool:
        """Return whether the next step reads by `a` what this one writes by `to`."""
        buffers, memory = self.staged.buffers, self.staged.memory
        sides = _OTHER_SIDE.get(buffers[a.buffer].place) is buffers[to.buffer].place
        return sides and memory[a.buffer] == memory[to.buffer] and _is_same(a, to)

    def _place(self, a: Access) -> str:
        buffer = self.staged.buffers[a.buffer]
        begin = "" if buffer.place is Place.WEIGHT else f" + rows.{_PLACES[buffer.place]} * {buffer.size}"
        return f"b{a.buffer}{begin} + ({_index(a, self.nests[0])})"

    def _emit_loop(self) -> None:
        depth = max(1, min(DEEPEST, FLAT_REGISTERS // max(1, len(self.early))))
        t = "steps - 1 - first - d" if self.staged.reverse else "first + d"
        self._emit(1, f"for (i64 first = 0; first < steps; first += {depth}) {{")
        for name in self.early.values():
            self._emit(2, f"Number {name}[{depth}];")
        for what in (self._emit_early, self._emit_step):
            self._emit(0, "#pragma unroll")
            self._emit(2, f"for (int d = 0; d < {depth}; d++) {{")
            self._emit(3, "if (first + d >= steps) continue;")
            self._emit(3, f"rows = find_rows(h, {t}, row);")
            what()
            self._emit(2, "}")
        self._emit(1, "}")

    def _emit_early(self) -> None:
        for a, name in self.early.items():
            self._emit(3, f"{name}[d] = get_constant({self._place(a)});")

    def _emit_step(self) -> None:
        later = []
        for k, nest in enumerate(self.nests):
            self._emit(3, "{")
            text = self._emit_body(4, nest, self._load)
            values = [text(s.value) for s in nest.stores]
            for s, value in zip(nest.stores, values, strict=True):
                self._emit(4, f"{self._name_store(s.to)}({self._place(s.to)}, {value});")
                for a, name in self.carried.items():
                    if self._is_next(a, s.to):
                        if k == len(self.nests) - 1:
                            self._emit(4, f"{name} = round_to_type({value});")
                        else:
                            later.append((name, self._place(s.to)))
            self._emit(3, "}")
        for name, place in later:
            self._emit(3, f"{name} = load_written({place});")

    def _load(self, a: Access) -> str:
        if a in self.fixed:
            return self.fixed[a]
        if a in self.early:
            return f"widen<TYPE>({self.early[a]}[d])"
        return self.carried.get(a) or f"{self._name_load(a)}({self._place(a)})"


def _literal(v: float) -> str:
    if math.isnan(v):
        return "op::not_a_number<Real>()"
    if math.isinf(v):
        return f"{'-' if v < 0 else ''}op::infinity<Real>()"
    return f"Real({float(v)!r})"


def _is_same(a: Access, b: Access) -> bool:
    """Return whether two accesses take the same number of their rows in every iteration."""
    return (a.offset, a.strides) == (b.offset, b.strides)


def _index(a: Access, nest: Nest) -> str:
    """Return the text of the number of a row that an access takes."""
    sizes = nest.sizes
    dense = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    terms = [f"i{k}" if s == 1 else f"{s} * i{k}" for k, s in enumerate(a.strides) if s]
    if terms and not nest.inner and all(s == d or n == 1 for s, d, n in zip(a.strides, dense, sizes, strict=True)):
        terms = ["i"]  # the flat index itself
    return " + ".join([str(a.offset), *terms] if a.offset or not terms else terms)


def _address(a: Access, nest: Nest) -> str:
    return f"b{a.buffer} + ({_index(a, nest)})"


def _span(a: Access, nest: Nest) -> tuple[int, int]:
    """Return the first and the last number of a row that an access may take."""
    ends = [s * (size - 1) for s, size in zip(a.strides, nest.sizes, strict=True)]
    return a.offset + sum(min(e, 0) for e in ends), a.offset + sum(max(e, 0) for e in ends)


def _overlap(a: Access, b: Access, nest: Nest, other: Nest | None = None) -> bool:
    (low, high), (first, last) = _span(a, nest), _span(b, other or nest)
    return low <= last and first <= high


def _conflict(before: Nest, after: Nest) -> bool:
    """Return whether a thread may need what another thread did in an earlier nest."""
    aligned = not before.inner and not after.inner and before.sizes == after.sizes

    def clash(a: Access, b: Access) -> bool:
        return a.buffer == b.buffer and _overlap(a, b, before, after) and not (aligned and _is_same(a, b))

    pairs = [(w, a) for w in before.writes() for a in (*after.reads(), *after.writes())]
    pairs += [(r, w) for r in before.reads() for w in after.writes()]
    return any(clash(a, b) for a, b in pairs)


def _width(nest: Nest) -> int:
    """Return the threads that a nest can use, a multiple of a warp."""
    if not nest.inner:
        width = math.prod(nest.sizes)
    else:
        outer, length = math.prod(nest.sizes[: -nest.inner]), math.prod(nest.sizes[-nest.inner :])
        width = outer if length <= SHORT else outer * WARP
    return -(-width // WARP) * WARP
