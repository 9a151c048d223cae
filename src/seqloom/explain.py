"""Which kernel runs, and why not a faster one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from seqloom.cell import Cell
from seqloom.job import Job
from seqloom.kernel import Choice, choose
from seqloom.layers.recurrent import Recurrent
from seqloom.scan import run_job


@dataclass(frozen=True)
class Explanation:
    """The kernel of every layer and direction; print it."""

    choices: tuple[tuple[str, Choice], ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(choice.name for _, choice in self.choices)

    def __str__(self) -> str:
        return "\n".join(f"{where}: {choice}" for where, choice in self.choices)


def explain(layer: Recurrent, *args: Any, **kwargs: Any) -> Explanation:
    """Run the layer as `layer(*args, **kwargs)` would and tell which kernels it took."""
    seen: list[tuple[str, Choice]] = []
    names = ["", "_reverse"][: 1 + layer.bidirectional]
    places = {id(cell): f"l{i // len(names)}{names[i % len(names)]}" for i, cell in enumerate(layer.cells)}

    def watched(cell: Cell, job: Job, kernel: str = "auto", values: Any = None) -> Any:
        seen.append((places[id(cell)], choose(cell, job, kernel)))
        return run_job(cell, job, kernel, values)

    layer.run_with(watched, *args, **kwargs)
    return Explanation(tuple(seen))
