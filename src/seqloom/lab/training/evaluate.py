"""A trained model on data with answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.opening import reopen
from seqloom.lab.training.run import Run
from seqloom.lab.training.scoring import score


def evaluate(run: Run, data: Any = None, split: str | None = None, device: str = "cpu") -> dict[str, Any]:
    """Every metric of the run's kind with its 95% interval, on a file, or on the run's own test data."""
    task = reopen(run.record["source"]) if data is None else run.task.over(data)
    chosen = split or ("test" if "test" in task.splits else next(iter(task.splits)))
    if chosen not in task.splits:
        raise UserError(f"there is no split {chosen!r}; there are {', '.join(task.splits)}")
    sizes = run.settings.sizes
    model = run.model("best", device)
    found = score(model, task, chosen, batch=sizes["batch"], tokens=sizes["tokens"], intervals=True)
    return {
        "run": str(run.folder),
        "data": task.name if data is None else str(data),
        "split": chosen,
        "examples": found.rows,
        "metrics": {name: finite_or_none(value) for name, value in found.values.items()},
        "intervals": {name: [finite_or_none(end) for end in ends] for name, ends in found.intervals.items()},
        "warnings": task.notes.warnings if data is not None else [],
    }


def finite_or_none(value: float) -> float | None:
    """JSON has no NaN."""
    return value if math.isfinite(value) else None


def tabulate_metrics(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As a table: a metric a row."""
    rows = []
    for name, value in document["metrics"].items():
        ends = document["intervals"].get(name)
        between = f"{ends[0]:.4f} to {ends[1]:.4f}" if ends and None not in ends else "-"
        rows.append({"metric": name, "value": "-" if value is None else f"{value:.4f}", "95% interval": between})
    return rows
