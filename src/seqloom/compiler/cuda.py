"""Write a program as CUDA C++, in one of three forms.

- A kernel for all steps in which a thread only needs what it wrote itself (cuda_flat.py).
- A kernel for all steps with some rows of the batch for each block, products included (cuda_scan.py).
- Kernels between the products of a library: all nests between two products become one kernel, with a block for each
row. The nests after the last product and those before the first product of the next step share a kernel.

Sizes are constants in the source; the batch, the number of steps and all addresses come from a table in the GPU's
memory (kernels/cuda/compiled/table.cuh).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from seqloom.compiler.cuda_flat import FLAT_THREADS, FlatScan
from seqloom.compiler.cuda_scan import RowScan
from seqloom.compiler.cuda_segments import WARP, Segments, count_lanes
from seqloom.compiler.cuda_writer import PRELUDE
from seqloom.compiler.plan import Scan
from seqloom.compiler.staging import Staged, stage

TYPES = {"bfloat16": "BF16", "float16": "FP16", "float32": "FP32", "float64": "FP64"}
MOST_THREADS = 512  # threads of a block with one row

SEGMENT_KERNEL = """\
constexpr int SEGMENT_{n}_BYTES = {shared};
KERNEL(segment_{n}, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 row = block(), t = h.base {sign} a.k;
  if (has_step(h, t, row)) run_segment_{n}(a.table, find_rows(h, t, row), true);
}}
"""
TURN_KERNEL = """\
constexpr int TURN_BYTES = {shared};
KERNEL(turn, StepArguments, THREADS) {{
  const Head h = read_head(a.table);
  const i64 row = block(), t = h.base {sign} a.k;
  if (has_step(h, t, row)) run_segment_{last}(a.table, find_rows(h, t, row), true);
  if (!a.has_next || !has_step(h, t {sign} 1, row)) return;
  wait_block();
  run_segment_0(a.table, find_rows(h, t {sign} 1, row), true);
}}
"""


@dataclass(frozen=True)
class CudaText:
    """The kernels of a program.

    A program that runs as one kernel has `scan`. Otherwise there is a `segment_i` for each segment with nests except
    the last, and `turn` for the last segment followed by the first one of the next step.

    Attributes:
        text: The CUDA C++.
        staged: The program in segments; its buffers are those of the table.
        threads: Threads per block.
        shared: Bytes of shared memory of each block.
        rows: Rows of the batch for each block of `scan`; 0 if there is no `scan`, or if units are given.
        units: Threads per row if blocks of `scan` process any units of any rows; otherwise 0.
    """

    text: str
    staged: Staged
    threads: int
    shared: int = 0
    rows: int = 0
    units: int = 0

    @cached_property
    def digest(self) -> str:
        """A name that is unique to the program."""
        return hashlib.sha256(repr((self.text, self.staged)).encode()).hexdigest()

    def count_blocks(self, B: int) -> int:
        """Return the blocks of `scan` for a batch of B rows."""
        return -(-B * self.units // self.threads) if self.units else -(-B // self.rows)


def write_cuda(scan: Scan, dtype: str, rows: int = 0) -> CudaText:
    """Write a program as CUDA C++.

    Args:
        scan: The program.
        dtype: Its data type: "float32", "float64", "bfloat16" or "float16".
        rows: How many rows of the batch a block should process in a kernel for all steps; fewer if their values do not
            fit into shared memory. 0 to leave products to a library.
    """
    staged = stage(scan)
    if len(staged.segments) == 1:
        flat = FlatScan(staged, TYPES[dtype])
        if flat.is_possible():
            return CudaText(flat.write(), staged, FLAT_THREADS, units=flat.units)
        rows = rows or 1
    inside = stage(scan, products_inside=True)
    while rows:
        whole = RowScan(inside, TYPES[dtype], rows)
        text = whole.write()
        if text is not None:
            return CudaText(text, inside, whole.lanes * rows, whole.shared, rows)
        rows //= 2
    return _write_kernels(staged, TYPES[dtype])


def _write_kernels(staged: Staged, type_: str) -> CudaText:
    """Write a kernel for each segment."""
    segments = staged.segments
    threads = min(MOST_THREADS, max([WARP, *(count_lanes(n) for s in segments for n in s.nests)]))
    writer = Segments(staged, type_, threads, 1)
    for n, segment in enumerate(segments):
        writer.emit_segment(n, segment.nests)
    text = PRELUDE.format(type=type_, threads=threads, rows=1) + "\n".join(writer.lines) + "\n"
    for n, segment in enumerate(segments[:-1]):
        text += SEGMENT_KERNEL.format(n=n, shared=writer.shared, sign=writer.sign) if segment.nests else ""
    text += TURN_KERNEL.format(last=len(segments) - 1, shared=writer.shared, sign=writer.sign)
    return CudaText(text, staged, threads, writer.shared)
