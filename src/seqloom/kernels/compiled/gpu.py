"""Run compiled programs on NVIDIA GPUs.

A program whose weights fit into the caches is one generated kernel, launched once: each block runs all steps of some
rows of the batch. With larger weights, cuBLAS computes the products and generated kernels everything between them. Such
a program becomes a CUDA graph of a chunk of steps. Everything that differs between calls and chunks (the addresses of
buffers, the lengths, the first step of a chunk) is in a table in the GPU's memory, so that one graph serves every call
with the same batch size, and no Python runs per step. In ragged batches products process all rows of the batch; the
kernels, which know the lengths, neither read nor write rows that have ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from seqloom.compiler.cuda import TYPES, CudaText, write_cuda
from seqloom.compiler.ir import Product
from seqloom.compiler.plan import Scan
from seqloom.core.cell import Cell
from seqloom.core.job import ScanJob
from seqloom.core.memory import empty
from seqloom.kernels import heuristics
from seqloom.kernels.compiled.packing import Packing
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.graphs import record
from seqloom.kernels.cuda.runtime.launch import CudaCode
from seqloom.kernels.fused import why_not_fused

TABLE = "compiled/table.cu"
HEAD = 5  # entries before the addresses: struct Head of compiled/table.cuh
ENTRIES = 64  # entries that one launch writes into a table
TEXTS_KEPT = 256  # generated source files; each is a few kilobytes

_texts: OrderedDict[tuple[int, torch.dtype, int], tuple[Scan, CudaText]] = OrderedDict()  # least recently used first


def why_not_gpu(cell: Cell, job: ScanJob) -> str | None:
    """Return why compiled programs cannot run this cell and job on a GPU; None if they can."""
    if not job.x.is_cuda:
        return "it is for CUDA tensors"
    types = {t.dtype for t in (job.x, *job.state)}
    wrong = [name for t in types if (name := str(t).removeprefix("torch.")) not in TYPES]
    if wrong:
        return f"it computes in {', '.join(TYPES)}, not {wrong[0]}"
    if job.x.shape[0] == 0 or job.x.shape[1] == 0:
        return "the batch is empty"
    return why_not_fused() or launch.why_not(job.x.device)


def run_on_gpu(scan: Scan, tensors: Sequence[Tensor | None], packing: Packing) -> None:
    """Run a program over all steps.

    Args:
        scan: The program.
        tensors: The memory of its buffers, contiguous, of one type and on one GPU; None for values within a step.
        packing: Where the rows of each step are; its indices are on the same GPU.
    """
    if not packing.T or not packing.B:
        return
    given = [t for t in tensors if t is not None]
    like = given[0]
    assert all(t.dtype == like.dtype and t.device == like.device for t in given)
    cuda = _find_text(scan, like.dtype, choose_rows(scan, packing.B, like.element_size()))
    with torch.cuda.device_of(like):
        if cuda.rows or cuda.units:
            _run_scan(cuda, tensors, like, packing)
            return
        steps = min(heuristics.GRAPH_STEPS, 1 << (packing.T - 1).bit_length())
        key = ("compiled", cuda.digest, packing.B, steps, like.device)
        with record(key, lambda: _Chunk(cuda, packing.B, steps, like)) as (chunk, replay):
            chunk.prepare(tensors, packing)
            for _ in range(-(-packing.T // steps)):
                replay()


def choose_rows(scan: Scan, B: int, size: int) -> int:
    """Return how many rows of the batch a block should process in all steps; 0 to use cuBLAS for products.

    Args:
        scan: The program.
        B: Rows of the batch.
        size: Bytes per element.
    """
    rows = 1
    while rows < heuristics.COMPILED_MOST_ROWS and rows * heuristics.COMPILED_BLOCKS < B:
        rows *= 2
    weights = sum(p.heads * p.K * p.N for p in scan.program.parts if isinstance(p, Product))
    traffic = -(-B // rows) * weights * size
    return rows if weights <= heuristics.COMPILED_WEIGHTS and traffic <= heuristics.COMPILED_TRAFFIC else 0


def _find_text(scan: Scan, dtype: torch.dtype, rows: int) -> CudaText:
    """Return the source code of a program; scans are compared by identity, which is faster than by value."""
    key = id(scan), dtype, rows
    if key not in _texts:
        _texts[key] = scan, write_cuda(scan, str(dtype).removeprefix("torch."), rows)  # the scan keeps its id
        while len(_texts) > TEXTS_KEPT:
            _texts.popitem(last=False)
    _texts.move_to_end(key)
    return _texts[key][1]


@lru_cache(TEXTS_KEPT)
def _find_kernel(name: str, text: str, threads: int, shared: int) -> CudaCode:
    return CudaCode(name, "a compiled cell", (), threads, shared, text=text)


def _start(cuda: CudaText, name: str, table: Tensor, blocks: int, k: int = 0, has_next: bool = False) -> None:
    """Launch a kernel of a program."""
    kind = launch.read_struct("compiled/table.cuh", "StepArguments")
    arguments = kind(table.data_ptr(), k, int(has_next))
    _find_kernel(name, cuda.text, cuda.threads, cuda.shared).launch(arguments, blocks, table.device)


def _run_scan(cuda: CudaText, tensors: Sequence[Tensor | None], like: Tensor, packing: Packing) -> None:
    table = empty(HEAD + len(tensors), dtype=torch.int64, device=like.device)
    weights = {p.weight for s in cuda.staged.segments for p in s.products}
    buffers = [_align(t) if t is not None and i in weights else t for i, t in enumerate(tensors)]
    _fill(table, 0, packing, buffers)
    _start(cuda, "scan", table, cuda.count_blocks(packing.B))


def _align(t: Tensor) -> Tensor:
    """Return a tensor whose address is a multiple of 16, for loads of 16 bytes."""
    return t.clone() if t.data_ptr() % 16 else t


def _allocate_rows(cuda: CudaText, B: int, like: Tensor) -> dict[int, Tensor]:
    """Return the memory of values that live within a step, by number."""
    staged = cuda.staged
    wide = torch.promote_types(like.dtype, torch.float32)
    own = [
        (i, b.size, wide if staged.is_wide(i) else like.dtype) for i, b in enumerate(staged.buffers) if staged.is_own(i)
    ]
    return {i: torch.zeros(B, size, dtype=dtype, device=like.device) for i, size, dtype in own}


def _fill(table: Tensor, base: int, packing: Packing, buffers: Sequence[Tensor | None]) -> None:
    """Write a program's table. Its values are passed as arguments of a kernel, so that the host does not wait."""
    ragged = packing.order is not None
    places = [t.data_ptr() if ragged else 0 for t in (packing.count, packing.offset)]
    values = [base, packing.T, packing.B, *places, *(0 if t is None else t.data_ptr() for t in buffers)]
    code = _table_kernel("compiled_fill", ENTRIES)
    for at in range(0, len(values), ENTRIES):
        some = values[at : at + ENTRIES]
        numbers = {f"values_{i}": v for i, v in enumerate(some)}
        code.launch(code.pack({"table": table, "at": at, "n": len(some)} | numbers), 1, table.device)


@lru_cache
def _table_kernel(name: str, threads: int) -> CudaCode:
    return CudaCode(name, TABLE, (), threads, 0)


class _Chunk:
    """The launches of some steps of a program, on their own memory; see `graphs.Work`.

    Args:
        cuda: The program's kernels.
        B: Rows of the batch.
        steps: Steps of the chunk.
        like: A tensor of the type and on the device of the program's.
    """

    def __init__(self, cuda: CudaText, B: int, steps: int, like: Tensor) -> None:
        self.cuda, self.B, self.steps = cuda, B, steps
        staged = cuda.staged
        with torch.inference_mode(False):  # these tensors outlive the caller's mode
            # without steps until it is filled, so that the launch before the recording writes nothing
            self.table = torch.zeros(HEAD + len(staged.buffers), dtype=torch.int64, device=like.device)
            self.rows = _allocate_rows(cuda, B, like)
            products = [p for s in staged.segments for p in s.products]
            self.weights = {p.weight: like.new_zeros(p.heads, p.K, p.N) for p in products}

    def prepare(self, tensors: Sequence[Tensor | None], packing: Packing) -> None:
        """Set the weights and the addresses of one call."""
        for number, weight in self.weights.items():
            value = tensors[number]
            assert value is not None
            weight.copy_(value.view(weight.shape))
        buffers = [self.rows[i] if i in self.rows else tensors[i] for i in range(len(self.cuda.staged.buffers))]
        _fill(self.table, packing.T - 1 if self.cuda.staged.reverse else 0, packing, buffers)

    def launch(self) -> None:
        """Run the steps of a chunk; the next launch runs the following ones."""
        *segments, end = self.cuda.staged.segments
        with torch.autocast(self.table.device.type, enabled=False):
            for k in range(self.steps):
                for n, segment in enumerate(segments):
                    if segment.nests and (n or not k):  # the first segment of later steps is part of `turn`
                        _start(self.cuda, f"segment_{n}", self.table, self.B, k)
                    for p in segment.products:
                        self._multiply(p)
                has_next = k + 1 < self.steps and any(s.nests for s in segments[:1])
                if end.nests or has_next:
                    _start(self.cuda, "turn", self.table, self.B, k, has_next)
        code = _table_kernel("compiled_advance", 32)
        steps = -self.steps if self.cuda.staged.reverse else self.steps
        code.launch(code.pack({"table": self.table, "steps": steps}), 1, self.table.device)

    def _multiply(self, p: Product) -> None:
        numbers = p.rows * p.heads * p.K
        source = self.rows[p.source][:, p.offset : p.offset + numbers].reshape(-1, p.heads, p.K)
        out, weight = self.rows[p.out].view(-1, p.heads, p.N), self.weights[p.weight]
        if p.heads == 1:
            torch.mm(source[:, 0], weight[0], out=out[:, 0])
        else:
            torch.bmm(source.transpose(0, 1), weight, out=out.transpose(0, 1))
