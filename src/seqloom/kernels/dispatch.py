"""Choose the kernel that runs a cell, with the reasons against faster ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob
from seqloom.kernels.cuda.gated.kernels import Gated
from seqloom.kernels.fused import is_traced, why_not_counted
from seqloom.kernels.registry import Kernel, KernelCode, Run, list_kernels


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, the object that runs jobs like this one, why each faster kernel was rejected, and a phrase."""

    kernel: Kernel
    run: Run
    rejected: tuple[tuple[str, str], ...] = ()
    detail: str = ""

    @property
    def name(self) -> str:
        """The kernel's full name."""
        return self.kernel.name

    @property
    def backend(self) -> str:
        """The kernel's short name."""
        return self.kernel.backend

    def __str__(self) -> str:
        first = f"{self.name} ({self.detail})" if self.detail else self.name
        return "".join([first, *(f"\n  not {name}: {reason}" for name, reason in self.rejected)])


def choose(cell: Cell, job: ScanJob, kernel: str = "auto") -> Choice:
    """Return the fastest kernel that fits, or the named one.

    Args:
        cell: The cell to run.
        job: The job.
        kernel: "auto", a full name ("gru_cpu") or a backend ("cpu").

    Raises:
        UserError: If the cell has no such kernel, or the kernel cannot run this job; with the reason.
    """
    if isinstance(cell, HeadsCell) and kernel in ("auto", "cuda", "each"):
        return _choose_for_heads(cell, job, kernel)
    if kernel == "auto":
        return _choose_fastest(cell, job)
    matching = [k for k in list_kernels(cell.name) if kernel in (k.name, k.backend)]
    if not matching:
        names = ", ".join(k.name for k in list_kernels(cell.name))
        raise UserError(f"no kernel {kernel!r} for cell {cell.name!r}; it has: {names} (or 'auto')")
    run = matching[0].prepare(cell, job)
    if isinstance(run, str):
        fastest = _choose_fastest(cell, job).name
        raise UserError(f"kernel {matching[0].name!r} cannot run this: {run}; the fastest that can is {fastest!r}")
    return Choice(matching[0], run)


def _choose_fastest(cell: Cell, job: ScanJob) -> Choice:
    """Return the first kernel without a reason against it; there is never one against the loop."""
    rejected: list[tuple[str, str]] = []
    kernels = list_kernels(cell.name)
    if is_traced():  # a trace can be saved only if it consists of torch's operators
        kernels = tuple(sorted(kernels, key=lambda kernel: kernel.backend != "aten"))
    uncounted = why_not_counted()
    for kernel in kernels:
        run = uncounted if uncounted and kernel.backend != "loop" else kernel.prepare(cell, job, is_auto=True)
        if not isinstance(run, str):
            return Choice(kernel, run, tuple(rejected))
        rejected.append((kernel.name, run))
    raise AssertionError("the loop runs everything")


@dataclass(frozen=True)
class EachHead:
    """Run every head of a cell with the kernel that was chosen for the first."""

    code: KernelCode

    def why_not(self, cell: Cell, job: ScanJob) -> str | None:
        """Return why the heads cannot run here; None if they can."""
        assert isinstance(cell, HeadsCell)
        return self.code.why_not(cell.first_cell(), cell.list_jobs(job)[0])

    def run(self, cell: Cell, job: ScanJob) -> tuple[Tensor, State]:
        """Run the heads one after the other."""
        assert isinstance(cell, HeadsCell)
        results = [self.code.run(*one) for one in zip(cell.list_cells(), cell.list_jobs(job), strict=True)]
        ends = zip(*(end for _, end in results), strict=True)
        return torch.cat([y for y, _ in results], -1), tuple(torch.cat(parts, -1) for parts in ends)


TOGETHER = Kernel("heads", "cuda", "NVIDIA GPU: all heads in one launch", Gated())


def _choose_for_heads(cell: HeadsCell, job: ScanJob, kernel: str) -> Choice:
    """Return the kernel for all heads in one launch ("auto", "cuda"), or for each head separately ("auto", "each")."""
    rejected = []
    if kernel != "each":
        reason = (kernel == "auto" and why_not_counted()) or TOGETHER.code.why_not(cell, job)
        if reason is None:
            return Choice(TOGETHER, TOGETHER.code.run, detail=f"{cell.heads} heads in one launch")
        if kernel == "cuda":
            raise UserError(f"kernel 'cuda' cannot run these heads: {reason}; kernel='auto' takes one that can")
        rejected.append((TOGETHER.name, reason))
    one = _choose_fastest(cell.first_cell(), cell.list_jobs(job)[0])
    each = Kernel("heads", "each", "every head by its own kernel", EachHead(one.kernel.code))
    return Choice(each, each.code.run, tuple(rejected), f"{cell.heads} heads, each by {one.name}")
