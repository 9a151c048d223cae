"""Write the nests of a program as CUDA C++.

All nests between two products become one kernel, with a block for each row and threads over the iterations. The nests
after the last product and those before the first product of the next step share a kernel. A program without products
becomes one kernel that walks over time (cuda_flat.py, if every thread only needs what it wrote itself).

Sizes are constants in the text; the batch, the number of steps and all addresses come from a table in the GPU's memory
(kernels/cuda/compiled/table.cuh).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from seqloom.compiler.cuda_flat import FLAT_THREADS, FlatScan
from seqloom.compiler.cuda_writer import PLACES, PRELUDE, Writer, is_same, overlap, write_index, write_literal
from seqloom.compiler.ir import Access, Nest, Place
from seqloom.compiler.plan import Scan
from seqloom.compiler.staging import Staged, stage

TYPES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
WARP = 32
MOST_THREADS = 512  # of a block that takes one row
SHORT = 4  # a thread combines up to so many numbers by itself
LONG = 64  # several warps combine so many numbers and more

_NEUTRAL = {"sum": 0.0, "maximum": -math.inf, "minimum": math.inf}

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
        flat = FlatScan(staged, TYPES[dtype])
        if flat.is_possible():
            return CudaText(flat.write(), staged, FLAT_THREADS, units=flat.units)
    return _Segments(staged, TYPES[dtype]).write()


class _Segments(Writer):
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
        self.emit(0, f"DEV void run_segment_{n}(const i64* table, const Rows& rows) {{")
        for number in sorted({a.buffer for nest in nests for a in (*nest.reads(), *nest.writes())}):
            buffer = self.staged.buffers[number]
            begin = "" if buffer.place is Place.WEIGHT else f" + rows.{PLACES[buffer.place]} * {buffer.size}"
            self.emit_address(number, "table", begin)
        since: list[Nest] = []  # the last barrier
        for nest in nests:
            if any(_conflict(before, nest) for before in since):
                self.emit(1, "wait_block();")
                since = []
            since.append(nest)
            if nest.inner:
                self._emit_reduction(nest)
            else:
                self._emit_pointwise(nest)
        self.emit(0, "}")

    def _load(self, nest: Nest) -> Callable[[Access], str]:
        return lambda a: f"{self.name_load(a)}({_address(a, nest)})"

    def _emit_pointwise(self, nest: Nest) -> None:
        total = math.prod(nest.sizes)
        self.emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
        self.emit_variables(2, nest.sizes, 0, "i")
        text = self.emit_body(2, nest, self._load(nest))
        values = [text(s.value) for s in nest.stores]
        for s, value in zip(nest.stores, values, strict=True):
            self.emit(2, f"{self.name_store(s.to)}({_address(s.to, nest)}, {value});")
        self.emit(1, "}")

    def _emit_reduction(self, nest: Nest) -> None:
        """Emit a loop in which a thread, a warp or several warps combine the numbers of one result."""
        outer, inner = nest.sizes[: -nest.inner], nest.sizes[-nest.inner :]
        total, length = math.prod(outer), math.prod(inner)
        if length <= SHORT or 2 * total >= self.threads:
            self.emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
            self._emit_combination(nest, outer, inner, "0", 1)
            self._emit_results(nest)
            self.emit(1, "}")
            return
        warps = self.threads // WARP // total
        if warps > 1 and length >= LONG and self.type != "FP64":
            self._emit_together(nest, outer, inner, warps)
            return
        self.emit(1, f"for (int i = thread() / {WARP}; i < {total}; i += THREADS / {WARP}) {{")
        self._emit_combination(nest, outer, inner, f"thread() % {WARP}", WARP)
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"s{k} = op::{r.operator}_over_lanes(s{k});")
        self.emit(2, f"if (thread() % {WARP} == 0) {{")
        self._emit_results(nest)
        self.emit(2, "}")
        self.emit(1, "}")

    def _emit_together(self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], warps: int) -> None:
        """Emit what each of several warps combines, then, past a barrier, what a thread makes of their results."""
        total, count = math.prod(outer), len(nest.reductions)
        shared, self.shared = self.shared, self.shared + 4 * total * count * warps
        self.emit(1, f"if (thread() < {WARP * warps * total}) {{")
        self.emit(2, f"const int i = thread() / {WARP * warps}, part = thread() % {WARP * warps};")
        self._emit_combination(nest, outer, inner, "part", WARP * warps)
        for k, r in enumerate(nest.reductions):
            at = f"{shared} + 4 * ((i * {count} + {k}) * {warps} + part / {WARP})"
            self.emit(2, f"s{k} = op::{r.operator}_over_lanes(s{k});")
            self.emit(2, f"if (part % {WARP} == 0) put_shared(shared_memory() + {at}, s{k});")
        self.emit(1, "}")
        self.emit(1, "wait_block();")
        self.emit(1, f"for (int i = thread(); i < {total}; i += THREADS) {{")
        self.emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"const u32 at{k} = shared_memory() + {shared} + 4 * ((i * {count} + {k}) * {warps});")
            self.emit(2, f"Real s{k} = get_shared(at{k});")
            self.emit(2, f"for (int j = 1; j < {warps}; j++) s{k} = op::{r.operator}(s{k}, get_shared(at{k} + 4 * j));")
        self._emit_results(nest)
        self.emit(1, "}")

    def _emit_combination(
        self, nest: Nest, outer: tuple[int, ...], inner: tuple[int, ...], first: str, stride: int
    ) -> None:
        """Emit the loop over the numbers that a thread combines."""
        self.emit_variables(2, outer, 0, "i")
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"Real s{k} = {write_literal(_NEUTRAL[r.operator])};")
        self.emit(2, f"for (int j = {first}; j < {math.prod(inner)}; j += {stride}) {{")
        self.emit_variables(3, inner, len(outer), "j")
        text = self.emit_body(3, nest, self._load(nest))
        for k, r in enumerate(nest.reductions):
            self.emit(3, f"s{k} = op::{r.operator}(s{k}, {text(r.value)});")
        self.emit(2, "}")

    def _emit_results(self, nest: Nest) -> None:
        for k, r in enumerate(nest.reductions):
            self.emit(2, f"{self.name_store(r.to)}({_address(r.to, nest)}, s{k});")


def _address(a: Access, nest: Nest) -> str:
    return f"b{a.buffer} + ({write_index(a, nest)})"


def _conflict(before: Nest, after: Nest) -> bool:
    """Return whether a thread may need what another thread did in an earlier nest."""
    aligned = not before.inner and not after.inner and before.sizes == after.sizes

    def clash(a: Access, b: Access) -> bool:
        return a.buffer == b.buffer and overlap(a, b, before, after) and not (aligned and is_same(a, b))

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
