"""A program as one kernel over time, products included, with some rows of the batch for each block.

Rows of a batch are independent, so that blocks never wait for each other. What lives within a step is in shared memory;
weights are read from the caches at every step, once for all rows of a block.
"""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.compiler.cuda_segments import WARP, Segments, count_lanes
from seqloom.compiler.cuda_writer import PRELUDE
from seqloom.compiler.ir import Place, Product
from seqloom.compiler.staging import Staged

MOST_THREADS = 512  # of a block
MOST_SHARED = 96 * 1024  # bytes of a block; every GPU that runs these kernels has so much
LINE = 128  # bytes that a prefetch brings
SHORTEST_SUM = 8  # numbers that a thread adds up, at least
MOST_TOGETHER = 8  # rows whose sums a thread keeps in registers
REGISTERS = 76  # of a thread, for numbers of weights, loaded factors and sums of products
NUMBERS_PER_THREAD = 32  # of the largest weight, if that gives fewer threads than the most

_BYTES = {"BF16": 2, "FP16": 2, "FP32": 4, "FP64": 8}

SCAN_KERNEL = """\
constexpr int SCAN_BYTES = {shared};
KERNEL(scan, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 first = (i64)block() * ROWS, row = first + slot(), steps = count_steps(h, first);
{kept}
  for (i64 i = 0; i < steps; i++) {{
    const i64 t = {t};
    const bool runs = has_step(h, t, row);
    const Rows rows = find_rows(h, t, row);
    if (has_step(h, t {sign} 1, row)) prefetch_step(a.table, find_rows(h, t {sign} 1, row));
{body}
    wait_block();
  }}
}}
"""


class RowScan(Segments):
    """One kernel over time.

    Args:
        staged: The program, with products inside.
        type_: The type of its numbers, by its name in the kernels.
        rows: Rows of the batch for each block.
    """

    def __init__(self, staged: Staged, type_: str, rows: int) -> None:
        super().__init__(staged, type_, _choose_lanes(staged, rows), rows)
        self.slots = {n: self.reserve(rows * b.size) for n, b in enumerate(staged.buffers) if staged.is_own(n)}

    def write(self) -> str | None:
        """Return the text; None if the rows of a block do not fit into shared memory."""
        body: list[str] = []
        self.kept: list[str] = []  # lines that load numbers of weights before the first step
        self.registers = REGISTERS
        segments = self.staged.segments
        for n, segment in enumerate(segments):
            self.emit_segment(n, segment.nests)
            body.append(f"run_segment_{n}(a.table, rows, runs);")
            for group in _group(segment.products):
                body += ["wait_block();", *self._write_products(group), "wait_block();"]
        if self.shared > MOST_SHARED:
            return None
        self._emit_prefetch()
        head = PRELUDE.format(type=self.type, threads=self.lanes * self.rows, rows=self.rows)
        head += '#include "compiled/product.cuh"\n' if any(s.products for s in segments) else ""
        t = "steps - 1 - i" if self.staged.reverse else "i"
        text = "\n".join(f"    {line}" for line in body)
        kept = "\n".join(f"  {line}" for line in self.kept)
        kernel = SCAN_KERNEL.format(shared=self.shared, t=t, sign=self.sign, body=text, kept=kept)
        return head + "\n".join(self.lines) + "\n" + kernel

    def emit_address(self, number: int) -> None:
        if number not in self.slots:
            super().emit_address(number)
            return
        size = self.staged.buffers[number].size
        self.emit(1, f"Real* const b{number} = point_shared<Real>({self.slots[number]}) + slot() * {size};")

    def _emit_prefetch(self) -> None:
        """Emit a function that prefetches what a step reads."""
        self.emit(0, "DEV void prefetch_step(const i64* table, const Rows& rows) {")
        reads = {a.buffer for s in self.staged.segments for n in s.nests for a in n.reads() if not self.is_written(a)}
        numbers = LINE // _BYTES[self.type]
        for n in sorted(n for n in reads if self.staged.buffers[n].place is Place.TIME):
            begin = f"read_address<Number>(table, {n}){self.find_begin(n)}"
            size = self.staged.buffers[n].size
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
            source = f"point_shared<Real>({self.slots[p.source]}) + {p.offset}"
            weight = f"read_address<Number>(a.table, {p.weight})"
            keep = self._keep(p, columns, span, depth, together)
            sizes = f"{rows}, {p.rows}, {p.heads}, {p.K}, {p.N}, {columns}, {span}, {depth}, {together}, {keep}"
            name = f"product{len(self.kept)}"
            self.kept.append(
                f"BlockProduct<TYPE, THREADS, {sizes}> {name};{f' {name}.keep({weight});' if keep else ''}"
            )
            first.append(f"{name}.multiply({to}, {source}, {stride}, {weight});")
            if parts > 1:
                second.append(f"add_parts<THREADS, {parts}, {numbers}>({out}, {to});")
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
        """Return the columns of a product that a thread computes: as many as one load brings."""
        columns = 16 // _BYTES[self.type]
        return 1 if self.type == "FP64" or p.N % columns else columns

    def _choose_span(self, p: Product, columns: int) -> int:
        """Return how many numbers a thread adds up, so that most threads have a part of the product."""
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
    """Divide products into groups that one after the other need results only of groups before."""
    groups: list[list[Product]] = []
    for p in products:
        if not groups or any(q.out == p.source for q in groups[-1]):
            groups.append([])
        groups[-1].append(p)
    return groups
