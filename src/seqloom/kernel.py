"""Which kernel runs a cell, and why not a faster one."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from torch import Tensor

from seqloom import kernels
from seqloom.cell import Cell, State
from seqloom.job import Job

# <cell>_<backend>, fastest first
BACKENDS = ("parallel", "cuda", "row", "slots", "cluster", "grid", "cpu", "aten", "graph", "manual", "scan", "loop")


class Kernel(Protocol):
    """A module of `kernels/`. One that auto should leave to another also has not_unasked(), the reason."""

    def why_not(self, cell: Cell, job: Job) -> str | None: ...
    def run(self, cell: Cell, job: Job) -> tuple[Tensor, State]: ...


@dataclass(frozen=True)
class Choice:
    """A kernel, and the reasons against those before it."""

    name: str
    passed_over: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return "".join([self.name, *(f"\n  not {name}: {reason}" for name, reason in self.passed_over)])


@cache
def known() -> tuple[str, ...]:
    """Every kernel there is, fastest backend first."""
    found = [m.name for m in pkgutil.iter_modules(kernels.__path__) if not m.name.startswith("_")]
    return tuple(sorted(found, key=lambda name: (BACKENDS.index(name.rpartition("_")[2]), name)))


@cache
def load(name: str) -> Kernel:
    return importlib.import_module(f"seqloom.kernels.{name}")


def for_cell(cell: Cell | type[Cell]) -> list[str]:
    """The kernels that know this cell, fastest first."""
    return _for_name(cell.name)


@cache
def _for_name(cell: str) -> list[str]:
    return [name for name in known() if name.rpartition("_")[0] in (cell, "any")]


def choose(cell: Cell, job: Job, kernel: str = "auto") -> Choice:
    """The fastest kernel that fits, or the one asked for by name, or an error with the reason."""
    if kernel == "auto":
        passed_over: list[tuple[str, str]] = []
        for name, reason in _reasons(cell, job):
            if reason is None:
                return Choice(name, tuple(passed_over))
            passed_over.append((name, reason))
    matching = [name for name in for_cell(cell) if kernel in (name, name.rpartition("_")[2])]
    if not matching:
        raise ValueError(
            f"no kernel {kernel!r} for cell {cell.name!r}; it has: {', '.join(for_cell(cell))} (or 'auto')"
        )
    reason = load(matching[0]).why_not(cell, job)
    if reason is not None:
        nearest = next((name for name, against in _reasons(cell, job) if against is None), "none")
        raise ValueError(f"kernel {matching[0]!r} cannot run this: {reason}; the nearest that can is {nearest!r}")
    return Choice(matching[0])


def _reasons(cell: Cell, job: Job) -> Iterator[tuple[str, str | None]]:
    for name in for_cell(cell):
        kernel = load(name)
        reason = kernel.why_not(cell, job)
        unasked = getattr(kernel, "not_unasked", None)
        yield name, reason or (unasked(cell, job) if unasked else None)
