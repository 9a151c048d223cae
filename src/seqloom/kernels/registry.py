"""The list of kernels, with the properties of each that the rest of the package needs.

A kernel runs a cell over a sequence with the results of the reference loop (`loop.py`). Its entry states the cell, the
backend, and the traits that layers and tools use. `kernel="auto"` tries the entries in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob
from seqloom.kernels import heuristics, loop, scan
from seqloom.kernels.aten.kernels import AtenKernel
from seqloom.kernels.compiled import kernel as compiled
from seqloom.kernels.compiled import own
from seqloom.kernels.cpu.kernels import OnCpu
from seqloom.kernels.cpu.prepared import ENGINE_WEIGHTS
from seqloom.kernels.cuda.attn_rnn import block, cluster, graph, grid, manual, row, slots, tiles
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated
from seqloom.kernels.parallel import linear

Run = Callable[[Cell, ScanJob], tuple[Tensor, State]]
WhyNot = Callable[[Cell, ScanJob], str | None]
ANY = "any"  # the cell of a kernel that runs every cell


class KernelCode(Protocol):
    """A module or object that runs a kernel.

    It may also define `why_not_auto(cell, job)`: why `kernel="auto"` should prefer another kernel, or None;
    `describe(cell, job)`: one phrase on what it does for a job; and, if it compiles cells, `prepare(cell, job)`: the
    function that runs jobs like this one, or the reason why there is none.
    """

    def why_not(self, cell: Cell, job: ScanJob) -> str | None: ...
    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class Kernel:
    """An entry of the list of kernels.

    Attributes:
        cell: The name of the cell that it runs, or "any".
        backend: The short name that `kernel=` takes.
        description: One line for `seqloom list kernels`.
        code: The functions that run it.
        hidden_multiple: The hidden size must be a multiple of this.
        skips_ended_rows: Whether rows that have ended cost no time.
        leaves_room: Whether it leaves part of the GPU free and accepts states of any type.
        uses_torch: Whether torch's operators do the work.
        compiles: Whether `why_not` may compile the cell, which takes a second; its preferences are asked first.
    """

    cell: str
    backend: str
    description: str
    code: KernelCode
    hidden_multiple: int = 1
    skips_ended_rows: bool = False
    leaves_room: bool = False
    uses_torch: bool = False
    compiles: bool = False

    @property
    def name(self) -> str:
        """The full name, as `explain` shows it: `gru_cpu`."""
        return f"{self.cell}_{self.backend}"

    def runs(self, cell: str) -> bool:
        """Return whether this kernel runs the cell with this name."""
        return self.cell in (cell, ANY)

    def prepare(self, cell: Cell, job: ScanJob, is_auto: bool = False) -> Run | str:
        """Return a function that runs jobs like this one, or the reason why there is none.

        Args:
            cell: The cell.
            job: What to run it over.
            is_auto: Whether a faster kernel also counts as a reason.
        """
        code: Any = self.code
        why_not_auto: WhyNot = getattr(code, "why_not_auto", _find_nothing) if is_auto else _find_nothing
        if self.compiles:
            found: Run | str = why_not_auto(cell, job) or code.prepare(cell, job)
            return found
        return code.why_not(cell, job) or why_not_auto(cell, job) or code.run

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run a cell over a job's sequences."""
        return self.code.run(cell, job)

    def describe(self, cell: Cell, job: ScanJob) -> str:
        """Return in one phrase what the kernel does for a job; empty for most kernels."""
        describe: Callable[[Cell, ScanJob], str] | None = getattr(self.code, "describe", None)
        return "" if describe is None else describe(cell, job)


def _find_nothing(_cell: Cell, _job: ScanJob) -> None:
    """Return None: there is no preference for another kernel."""


_ON_GPU: Any = {"skips_ended_rows": True}
_ON_A_PART: Any = _ON_GPU | {"leaves_room": True}
KERNELS = (
    Kernel("min_gru", "parallel", "parallel scan over time", linear),
    Kernel("min_lstm", "parallel", "parallel scan over time", linear),
    Kernel("t_rnn", "parallel", "parallel scan over time", linear),
    Kernel("attn_rnn", "cuda", "NVIDIA GPU, bf16 and fp16: a block takes 8 rows", block.KERNEL, **_ON_A_PART),
    *(
        Kernel(
            cell,
            "cuda",
            "NVIDIA GPU: a cluster of blocks takes some rows",
            Gated(),
            **_ON_A_PART | {"hidden_multiple": heuristics.HIDDEN_MULTIPLE if kind.norm else 1},
        )
        for cell, kind in KINDS.items()
    ),
    Kernel("attn_rnn", "row", "NVIDIA GPU, up to 128 units: a block takes one row", row.KERNEL, **_ON_A_PART),
    Kernel(
        "attn_rnn",
        "slots",
        "NVIDIA GPU, bf16 and fp16, 2 to 8 slots, up to 128 units",
        slots.KERNEL,
        hidden_multiple=heuristics.HIDDEN_MULTIPLE,
    ),
    Kernel("attn_rnn", "tiles", "large NVIDIA GPU: a group of blocks takes many rows", tiles.KERNEL, **_ON_GPU),
    Kernel(
        "attn_rnn",
        "cluster",
        "NVIDIA GPU from Hopper on: a cluster of blocks takes some rows",
        cluster.KERNEL,
        **_ON_A_PART,
    ),
    Kernel("attn_rnn", "grid", "large NVIDIA GPU: a group of blocks takes some rows", grid.KERNEL, **_ON_GPU),
    *(
        Kernel(
            cell,
            "grid",
            "large NVIDIA GPU: groups of blocks",
            Gated(grid=True),
            **_ON_GPU | {"hidden_multiple": heuristics.HIDDEN_MULTIPLE if kind.norm else 1},
        )
        for cell, kind in KINDS.items()
    ),
    *(Kernel(cell, "cpu", "C++ engine", OnCpu(cell)) for cell in ENGINE_WEIGHTS),
    *(
        Kernel(cell, "row", "NVIDIA GPU, float32, compiled: a block takes some rows", own, compiles=True)
        for cell in heuristics.COMPILED_OWN
    ),
    Kernel("gru", "aten", "torch's fused GRU (cuDNN on a GPU)", AtenKernel("gru"), uses_torch=True),
    Kernel("lstm", "aten", "torch's fused LSTM (oneDNN on a CPU, cuDNN on a GPU)", AtenKernel("lstm"), uses_torch=True),
    Kernel("rnn", "aten", "torch's fused RNN (cuDNN on a GPU)", AtenKernel("rnn"), uses_torch=True),
    Kernel("attn_rnn", "graph", "NVIDIA GPU, any size and type: products by torch in a CUDA graph", graph),
    Kernel("attn_rnn", "manual", "plain torch, backward written by hand; every device and type", manual),
    Kernel(ANY, "compiled", "any cell that the compiler knows, as fused loops", compiled, compiles=True),
    Kernel(ANY, "scan", "any cell through torch's scan operator, compiled once", scan),
    Kernel(ANY, "loop", "any cell, step by step: the reference", loop),
)


@cache
def list_kernels(cell: str) -> tuple[Kernel, ...]:
    """Return the kernels that run the cell of this name, the fastest first."""
    return tuple(kernel for kernel in KERNELS if kernel.runs(cell))


def find_kernel(name: str) -> Kernel:
    """Return the kernel with this full name.

    Raises:
        KeyError: If there is none.
    """
    for kernel in KERNELS:
        if kernel.name == name:
            return kernel
    raise KeyError(name)
