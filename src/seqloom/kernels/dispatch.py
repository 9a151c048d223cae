"""Choice of the kernel that runs a cell, with the reasons against faster ones."""

from __future__ import annotations

from dataclasses import dataclass

from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob
from seqloom.kernels.registry import Kernel, list_kernels


@dataclass(frozen=True)
class Choice:
    """The chosen kernel, why each faster one was rejected, and what the chosen one does, in one phrase."""

    kernel: Kernel
    rejected: tuple[tuple[str, str], ...] = ()
    detail: str = ""

    @property
    def name(self) -> str:
        """The kernel's full name."""
        return self.kernel.name

    def __str__(self) -> str:
        first = f"{self.name} ({self.detail})" if self.detail else self.name
        return "".join([first, *(f"\n  not {name}: {reason}" for name, reason in self.rejected)])


def choose(cell: Cell, job: ScanJob, kernel: str = "auto") -> Choice:
    """Return the fastest kernel that fits, or the named one.

    Args:
        cell: The cell to run.
        job: What to run it over.
        kernel: "auto", a full name ("gru_cpu") or a backend ("cpu").

    Raises:
        UserError: If the cell has no such kernel, or the kernel cannot run this job; with the reason.
    """
    if kernel == "auto":
        return _choose_fastest(cell, job)
    matching = [k for k in list_kernels(cell.name) if kernel in (k.name, k.backend)]
    if not matching:
        names = ", ".join(k.name for k in list_kernels(cell.name))
        raise UserError(f"no kernel {kernel!r} for cell {cell.name!r}; it has: {names} (or 'auto')")
    reason = matching[0].code.why_not(cell, job)
    if reason is not None:
        fastest = _choose_fastest(cell, job).name
        raise UserError(f"kernel {matching[0].name!r} cannot run this: {reason}; the fastest that can is {fastest!r}")
    return Choice(matching[0])


def _choose_fastest(cell: Cell, job: ScanJob) -> Choice:
    """Return the first kernel without a reason against it; the loop never has one."""
    rejected: list[tuple[str, str]] = []
    for kernel in list_kernels(cell.name):
        reason = kernel.why_not_auto(cell, job)
        if reason is None:
            return Choice(kernel, tuple(rejected))
        rejected.append((kernel.name, reason))
    raise AssertionError("the loop runs everything")
