"""Choice of the kernel that runs a linear recurrence."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.kernels.fused import why_not_counted
from seqloom.kernels.linear import chunk, engine, exported, flash, recurrent
from seqloom.kernels.linear.choice import LinearChoice, note
from seqloom.kernels.linear.job import LinearJob


class LinearKernelCode(Protocol):
    """A module that runs a linear recurrence with the results of `recurrent.py`."""

    def why_not(self, job: LinearJob) -> str | None: ...
    def run(self, job: LinearJob) -> tuple[Tensor, Tensor]: ...


class LinearKernel(NamedTuple):
    """An entry of the list of kernels."""

    name: str
    description: str
    code: LinearKernelCode


# In the order in which `kernel="auto"` tries them.
KERNELS = (
    LinearKernel("fla", "flash-linear-attention's Triton kernels on a GPU", flash),
    LinearKernel("cpu", "the C++ engine", engine),
    LinearKernel("export", "torch's scan operator, for any length", exported),
    LinearKernel("chunk", "products of chunks, by torch", chunk),
    LinearKernel("recurrent", "step by step: the definition", recurrent),
)
NAMES = ("auto", *(kernel.name for kernel in KERNELS))


def run_linear(job: LinearJob, kernel: str = "auto") -> tuple[Tensor, Tensor]:
    """Run a linear recurrence.

    Args:
        job: The recurrence, as `make_job` returns it.
        kernel: "auto", or the name of a kernel.

    Returns:
        The outputs (B, T, H, V) and the last state (B, H, K, V).

    Raises:
        UserError: If there is no such kernel, or it cannot run this job; with the reason.

    Example:
        >>> from seqloom.kernels.linear.dispatch import run_linear
        >>> from seqloom.kernels.linear.job import make_job
        >>> q, k, v = (torch.randn(2, 5, 4, 8) for _ in range(3))  # (B, T, heads, size)
        >>> y, state = run_linear(make_job(q, k, v))
        >>> y.shape, state.shape
        (torch.Size([2, 5, 4, 8]), torch.Size([2, 4, 8, 8]))
    """
    chosen, choice = choose_linear(job, kernel)
    note(choice)
    return chosen.code.run(job)


def choose_linear(job: LinearJob, kernel: str = "auto") -> tuple[LinearKernel, LinearChoice]:
    """Return the fastest kernel that fits, or the named one, and why faster ones do not run."""
    if kernel != "auto":
        named = next((k for k in KERNELS if k.name == kernel), None)
        if named is None:
            raise UserError(f"kernel must be one of {', '.join(NAMES)}, got {kernel!r}")
        reason = named.code.why_not(job)
        if reason is not None:
            raise UserError(f"kernel {kernel!r} cannot run this: {reason}")
        return named, LinearChoice(named.name, named.description)
    rejected: list[tuple[str, str]] = []
    for entry in KERNELS:
        reason = entry.code.why_not(job) or _why_not_auto(entry.name, job)
        if reason is None:
            return entry, LinearChoice(entry.name, entry.description, tuple(rejected))
        rejected.append((entry.name, reason))
    raise AssertionError("the definition runs everything")


def _why_not_auto(name: str, job: LinearJob) -> str | None:
    if name in ("fla", "cpu") and (reason := why_not_counted()):
        return reason
    if name == "fla":
        return flash.why_not_auto(job)
    if name == "chunk" and job.q.shape[1] == 1:
        return "a single step has no chunks"
    if name == "export" and job.q.shape[1] == 1:
        return "a single step needs no scan"
    return None
