"""Decide whether a sequence is divided into chunks, by its size and by what earlier calls of the cell have shown."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.cell import Cell, by_handle
from seqloom.core.errors import UserError
from seqloom.core.precision import find_product_type
from seqloom.kernels import heuristics
from seqloom.kernels.fused import is_traced, why_not_fused
from seqloom.kernels.registry import list_kernels


@dataclass
class Experience:
    """What earlier calls of a cell have shown about dividing its sequences.

    Attributes:
        steps: Steps of a chunk.
        passes: Passes that the forward pass needed.
        back: Passes that the last backward pass needed; 0 before the first.
        defect: Largest difference between the end of a chunk and the start of the next one, in units of the largest
            state.
        failed: Why the last call ran as a whole; empty if it did not.
        factor: Chunks are this many times as long as the shortest, because shorter ones needed too many passes.
        rest: Calls that run as a whole before chunks are tried again.
        wait: How many these are after the next failure.
    """

    steps: int = 0
    passes: int = 2
    back: int = 0
    defect: float = 0.0
    failed: str = ""
    factor: int = 1
    rest: int = 0
    wait: int = heuristics.PARALLEL_WAITS[0]

    def note_success(self, steps: int, passes: int, defect: float) -> None:
        """Remember a forward pass whose chunks agree."""
        self.steps, self.passes, self.defect = steps, passes, defect
        self.wait, self.failed = heuristics.PARALLEL_WAITS[0], ""

    def note_failure(self, steps: int, passes: int, defect: float, chunks: int) -> None:
        """Remember passes whose chunks do not agree: try longer ones next time, or none for a while."""
        self.failed = f"after {passes} passes over chunks of {steps} steps their states differed by {defect:.1g}"
        self.passes, self.back = 2, 0
        if chunks > heuristics.PARALLEL_LEAST_CHUNKS:
            self.factor *= 4
        else:
            self.factor, self.rest = 1, self.wait
            self.wait = min(4 * self.wait, heuristics.PARALLEL_WAITS[1])

    def __str__(self) -> str:
        if self.failed:
            return f"the sequence as a whole; {self.failed}"
        back = f" and {self.back} back" if self.back else ""
        return f"chunks of {self.steps} steps in parallel: {self.passes} passes{back}, difference {self.defect:.1g}"


_experiences: weakref.WeakKeyDictionary[Cell, Experience] = weakref.WeakKeyDictionary()


def recall(cell: Cell) -> Experience:
    """Return what earlier calls of a cell have shown, or of the cell that it is a view of."""
    return _experiences.setdefault(by_handle.get(cell.handle, cell), Experience())


def check_parallel(parallel: object) -> None:
    """Raise an error unless this is "auto", "never" or a number of steps."""
    if parallel in ("auto", "never") or (type(parallel) is int and parallel > 0):
        return
    raise UserError(f"parallel must be 'auto', 'never' or the steps of a chunk, such as 256, got {parallel!r}")


def find_steps(cell: Cell, x: Tensor, parallel: str | int) -> int:
    """Return the steps of a chunk of the input x (B, T, D); 0 if it runs as a whole."""
    B, T, _ = x.shape
    if not may_divide(cell, B, T, x.device, find_product_type(x), parallel) or not _is_possible(x):
        return 0
    if isinstance(parallel, int):
        return parallel
    known = recall(cell)
    if known.rest:
        known.rest -= 1
        return 0
    most = max(_count_chunks(cell, B, T) // known.factor, heuristics.PARALLEL_LEAST_CHUNKS)
    return T // min(range(most, most - most // 4, -1), key=lambda chunks: T % chunks)


def may_divide(cell: Cell, B: int, T: int, device: torch.device, dtype: torch.dtype, parallel: str | int) -> bool:
    """Return whether inputs of this size may be divided; `dtype` is that of their products."""
    if isinstance(parallel, int):
        return B > 0 and 2 * parallel <= T
    if parallel == "never" or device.type != "cuda" or not B or torch.are_deterministic_algorithms_enabled():
        return False
    is_linear = list_kernels(cell.name)[0].backend == "parallel"  # all of its steps run side by side already
    is_16_bits = dtype.itemsize == 2
    least = heuristics.PARALLEL_LEAST_STEPS_IN_16_BITS if is_16_bits else heuristics.PARALLEL_LEAST_STEPS
    is_long = least <= T and _count_chunks(cell, B, T) >= heuristics.PARALLEL_LEAST_CHUNKS
    return is_long and not is_linear


def _count_chunks(cell: Cell, B: int, T: int) -> int:
    """Return how many chunks run side by side on a GPU in about the time of one."""
    rows = heuristics.PARALLEL_CAPACITY // max(cell.hidden_size, heuristics.PARALLEL_LEAST_HIDDEN) ** 2
    return min(T // heuristics.PARALLEL_CHUNK, rows // B)


def _is_possible(x: Tensor) -> bool:
    """Return whether states can be compared now: passes are not part of a graph that is recorded or counted."""
    return not (
        torch.compiler.is_dynamo_compiling()
        or torch._C._len_torch_dispatch_stack()
        or why_not_fused() is not None
        or is_traced()
        or (x.is_cuda and torch.cuda.is_current_stream_capturing())
        or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # a checkpoint repeats all passes
    )
