"""A program as one kernel over time, products included, with some rows of the batch for each block.

Rows of a batch are independent, so that blocks never wait for each other. What lives within a step is in shared memory;
weights are read from the caches at every step, once for all rows of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from seqloom.compiler.cuda_segments import WARP, Segments, count_lanes, write_address
from seqloom.compiler.cuda_writer import PRELUDE, write_index
from seqloom.compiler.ir import Access, Nest, Place, Product
from seqloom.compiler.staging import Staged

MOST_THREADS = 512  # maximum threads per block
MOST_SHARED = 96 * 1024  # bytes per block; every GPU that runs these kernels has this much
LINE = 128  # bytes per prefetch
SHORTEST_SUM = 8  # minimum number of values that a thread adds up
MOST_TOGETHER = 8  # rows whose sums a thread keeps in registers
REGISTERS = 76  # registers of a thread for weights, loaded factors and sums of products
MOST_EARLY = 12  # values that a thread loads before the products of a step
# Elements of the largest weight per thread, if that gives fewer than the maximum number of threads.
NUMBERS_PER_THREAD = 32

_BYTES = {"BF16": 2, "FP16": 2, "FP32": 4, "FP64": 8}

SCAN_KERNEL = """\
constexpr int SCAN_BYTES = {shared};
KERNEL(scan, StepArguments, THREADS) {{
  const i64* const table = a.table;
  const Head h = read_head(table);
  const i64 first = (i64)block() * ROWS, row = first + slot(), steps = count_steps(h, first);
{start}
  for (i64 step = 0; step < steps; step++) {{
    const i64 t = {t};
    const int turn = (int)(step & 1);
    const bool runs = has_step(h, t, row);
    const Rows rows = find_rows(h, t, row);
    if (has_step(h, t {sign} 1, row)) prefetch_step(table, find_rows(h, t {sign} 1, row));
{body}
    wait_block();
  }}
}}
"""


class RowScan(Segments):
    """Write a kernel that runs all steps of a program.

    States that a step computes are double-buffered in shared memory (before and after the step). They are also stored
    for all steps, for the caller.

    Args:
        staged: The program, with products inside.
        type_: Its data type, by the type's name in the kernels.
        rows: Rows of the batch for each block.
    """

    def __init__(self, staged: Staged, type_: str, rows: int) -> None:
        super().__init__(staged, type_, _choose_lanes(staged, rows), rows)
        buffers = staged.buffers
        self.slots = {n: self.reserve(rows * b.size) for n, b in enumerate(buffers) if staged.is_own(n)}
        self.source = Place.AFTER if staged.reverse else Place.BEFORE  # where a step finds the states
        self.states = {
            n: staged.memory[n]
            for n, b in enumerate(buffers)
            if b.place in (Place.BEFORE, Place.AFTER) and staged.memory[n] in self.written
        }
        sizes = {memory: buffers[n].size for n, memory in self.states.items()}
        self.carried = {memory: self.reserve(2 * rows * size) for memory, size in sizes.items()}
        self.start: list[str] = []  # code that runs before the first step
        self.early: dict[tuple[int, Access], str] = {}  # names of values that are loaded before the products, by nest
        self.registers = REGISTERS

    def write(self) -> str | None:
        """Return the source code; None if the rows of a block do not fit into shared memory."""
        segments = self.staged.segments
        nests = [nest for s in segments for nest in s.nests]
        self._emit_prefetch()
        head = PRELUDE.format(type=self.type, threads=self.lanes * self.rows, rows=self.rows)
        head += '#include "compiled/product.cuh"\n' if any(s.products for s in segments) else ""
        head += "\n".join(self.lines) + "\n"
        self.lines = []
        for number in sorted({a.buffer for nest in nests for a in (*nest.reads(), *nest.writes())}):
            self.emit_address(number)
        self._emit_early()
        for segment in segments:
            self.emit_nests(segment.nests)
            if segment.nests and segment.products:
                self.emit(1, "wait_block();")
            for group in _group(segment.products):
                for line in (*self._write_products(group), "wait_block();"):
                    self.emit(1, line)
        if self.shared > MOST_SHARED:
            return None
        self._load_states()
        t = "steps - 1 - step" if self.staged.reverse else "step"
        body, start = ("\n".join(f"  {line}" for line in lines) for lines in (self.lines, self.start))
        return head + SCAN_KERNEL.format(shared=self.shared, t=t, sign=self.sign, body=body, start=start)

    def emit_address(self, number: int) -> None:
        size = self.staged.buffers[number].size
        if number in self.slots:
            self.emit(1, f"Real* const b{number} = point_shared<Real>({self.slots[number]}) + slot() * {size};")
            return
        if number in self.states:
            self.emit(1, f"Real* const c{number} = {self._find_state(number)} + slot() * {size};")
        super().emit_address(number)

    def _find_state(self, number: int) -> str:
        """Return the code for the shared memory of a state of all rows."""
        buffer, begin = self.staged.buffers[number], self.carried[self.states[number]]
        turn = "turn" if buffer.place is self.source else "(1 - turn)"
        return f"point_shared<Real>({begin}) + {turn} * {self.rows * buffer.size}"

    def load(self, nest: Nest) -> Callable[[Access], str]:
        def write(a: Access) -> str:
            if (id(nest), a) in self.early:
                return self.early[id(nest), a]
            if a.buffer in self.states:
                return f"load_wide(c{a.buffer} + ({write_index(a, nest)}))"
            return f"{self.name_load(a)}({write_address(a, nest)})"

        return write

    def emit_store(self, depth: int, to: Access, nest: Nest, value: str) -> None:
        super().emit_store(depth, to, nest, value)
        if to.buffer in self.states:
            self.emit(depth, f"store_wide(c{to.buffer} + ({write_index(to, nest)}), round_to_type({value}));")

    def _emit_early(self) -> None:
        """Emit loads of inputs that nests after a product need, so that they overlap the product."""
        later = [nest for k, s in enumerate(self.staged.segments) for nest in s.nests if k]
        for nest in later:
            total = math.prod(nest.sizes)
            inputs = [a for a in dict.fromkeys(nest.reads()) if self._is_input(a)]
            if nest.inner or total > self.lanes or not inputs or len(self.early) + len(inputs) > MOST_EARLY:
                continue
            names = {a: f"e{len(self.early) + k}" for k, a in enumerate(inputs)}
            self.emit(1, f"Real {', '.join(names.values())};")
            self.emit(1, f"if (runs && lane() < {total}) {{")
            self.emit(2, "const int i = lane();")
            self.emit_variables(2, nest.sizes, 0, "i")
            for a, name in names.items():
                self.emit(2, f"{name} = load({write_address(a, nest)});")
            self.emit(1, "}")
            self.early |= {(id(nest), a): name for a, name in names.items()}

    def _is_input(self, a: Access) -> bool:
        """Return whether an access reads an input that differs from step to step."""
        place = self.staged.buffers[a.buffer].place
        return place in (Place.TIME, Place.BEFORE, Place.AFTER) and not self.is_written(a)

    def _load_states(self) -> None:
        """Return the lines that load the states of a block's rows before the first step of each row."""
        sources = {n: self.carried[m] for n, m in self.states.items() if self.staged.buffers[n].place is self.source}
        if not sources:
            return
        own = "count_steps(h, row)" if self.staged.reverse else "steps"
        t, turn = ("own - 1", "(steps - own) & 1") if self.staged.reverse else ("0", "0")
        self.start += [
            f"const i64 own = row < h.B ? {own} : 0;",
            "if (own) {",
            f"  const Rows rows = find_rows(h, {t}, row);",
        ]
        for n, begin in sources.items():
            size = self.staged.buffers[n].size
            to = f"point_shared<Real>({begin}) + ((int)({turn}) * ROWS + slot()) * {size}"
            where = f"read_address<Number>(table, {n}){self.find_begin(n)}"
            self.start.append(f"  for (int i = lane(); i < {size}; i += LANES) ({to})[i] = load_written({where} + i);")
        self.start += ["}", "wait_block();"]

    def _emit_prefetch(self) -> None:
        """Emit a function that prefetches what a step reads."""
        self.emit(0, "DEV void prefetch_step(const i64* table, const Rows& rows) {")
        reads = {a.buffer for s in self.staged.segments for n in s.nests for a in n.reads() if self._is_input(a)}
        numbers = LINE // _BYTES[self.type]
        for n in sorted(reads):
            begin, size = f"read_address<Number>(table, {n}){self.find_begin(n)}", self.staged.buffers[n].size
            self.emit(1, f"for (int i = lane() * {numbers}; i < {size}; i += LANES * {numbers})")
            self.emit(2, f"prefetch_global({begin} + i);")
        self.emit(0, "}")

    def _write_products(self, products: Sequence[Product]) -> list[str]:
        """Return the lines of products that do not need each other."""
        first, second = [], []
        for p in products:
            columns, stride = self._count_columns(p), self.staged.buffers[p.source].size
            span = self._choose_span(p, columns)
            depth = 4 if all(n % 4 == 0 for n in (p.K, span, p.offset, stride)) and self.type != "FP64" else 1
            parts, rows = -(-p.K // span), self.rows * p.rows
            together = next(n for n in range(MOST_TOGETHER, 0, -1) if rows % n == 0)
            out, numbers = f"point_shared<Real>({self.slots[p.out]})", rows * p.heads * p.N
            to = out if parts == 1 else f"point_shared<Real>({self.reserve(parts * numbers)})"
            begin = f"point_shared<Real>({self.slots[p.source]})" if p.source in self.slots else ""
            source = f"{begin or self._find_state(p.source)} + {p.offset}"
            weight = f"read_address<Number>(table, {p.weight})"
            keep = self._keep(p, columns, span, depth, together)
            sizes = f"{rows}, {p.rows}, {p.heads}, {p.K}, {p.N}, {columns}, {span}, {depth}, {together}, {keep}"
            name = f"product{len(self.start)}"
            self.start.append(f"BlockProduct<TYPE, THREADS, {sizes}> {name};")
            self.start += [f"{name}.keep({weight});"] if keep else []
            first.append(f"{name}.multiply({to}, {source}, {stride}, {weight});")
            if parts > 1:
                second.append(f"add_parts<TYPE, THREADS, {parts}, {numbers}>({out}, {to});")
        return [*first, "wait_block();", *second] if second else first

    def _keep(self, p: Product, columns: int, span: int, depth: int, together: int) -> int:
        """Return how many of its rows of the weight a thread keeps in registers."""
        items = p.heads * p.N // columns * -(-p.K // span)
        if columns == 1 or depth == 1 or items > self.lanes * self.rows:
            return 0
        keep = max(0, min(span, (self.registers - columns * (depth + together)) // 4) // depth * depth)
        self.registers -= 4 * keep
        return keep

    def _count_columns(self, p: Product) -> int:
        """Return the number of columns of a product that a thread computes: as many as one load fetches."""
        columns = 16 // _BYTES[self.type]
        return 1 if self.type == "FP64" or p.N % columns else columns

    def _choose_span(self, p: Product, columns: int) -> int:
        """Return how many values a thread adds up, so that most threads have a part of the product."""
        parts = max(1, self.lanes * self.rows // (p.heads * p.N // columns))
        span = max(SHORTEST_SUM, -(-p.K // parts))
        return min(p.K, -(-span // 4) * 4)


def _choose_lanes(staged: Staged, rows: int) -> int:
    """Return the threads of a block for each of its rows."""
    largest = max((p.heads * p.K * p.N for s in staged.segments for p in s.products), default=0)
    lanes = [count_lanes(nest) for s in staged.segments for nest in s.nests]
    wanted = max([WARP, -(-largest // (NUMBERS_PER_THREAD * rows)), *lanes])
    return min(MOST_THREADS // rows, -(-wanted // WARP) * WARP)


def _group(products: Sequence[Product]) -> list[list[Product]]:
    """Divide products into consecutive groups, each of which needs results only of earlier groups."""
    groups: list[list[Product]] = []
    for p in products:
        if not groups or any(q.out == p.source for q in groups[-1]):
            groups.append([])
        groups[-1].append(p)
    return groups
