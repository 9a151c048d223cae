"""What came out of runs: of one as a document, of many as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.stats.metrics import primary_metric
from seqloom.lab.training import checkpoint
from seqloom.lab.training.evaluate import tabulate_metrics
from seqloom.lab.training.folders import list_names
from seqloom.lab.training.run import Run

ABOUT = ("step", "epoch", "split", "lr", "seconds", "train_loss", "rows")  # a line's facts that are no metrics


def summarise_run(run: Run) -> dict[str, Any]:
    """Settings, how far it came, and its metrics: of the best validation, and of the test if there was one."""
    lines = run.metrics()
    best = _best(run)
    valid = next((line for line in lines if line.get("split") == "valid" and line["step"] == best), {})
    test: dict[str, Any] = next((line for line in lines if line.get("split") == "test"), {})
    last: dict[str, Any] = next((line for line in reversed(lines) if line.get("split") == "valid"), {})
    return {
        "run": str(run.folder),
        "name": run.name,
        "model": run.settings.model,
        "task": run.record["task"]["name"],
        "kind": run.record["task"]["kind"],
        "created": run.record["created"],
        "finished": run.finished,
        "steps": last.get("step", 0),
        "epochs": last.get("epoch", 0),
        "seconds": last.get("seconds", 0.0),
        "best_step": best,
        "valid": _metrics(valid),
        "test": _metrics(test),
        "test_intervals": {k.removesuffix("_interval"): v for k, v in test.items() if k.endswith("_interval")},
        "settings": run.settings.model_dump(),
    }


def _best(run: Run) -> int | None:
    try:
        found = checkpoint.find(run.folder / "best")
    except DamagedError:
        return None
    return None if found is None else int(found.facts["step"])


def _metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in ABOUT and not k.endswith("_interval")}


def tabulate_results(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The metrics of one run as a table: of the test where there is one, beside those of the validation."""
    tested = document["test"] or document["valid"]
    rows = tabulate_metrics({"metrics": tested, "intervals": document["test_intervals"]})
    name = "test" if document["test"] else "validation"
    beside = document["valid"] if document["test"] else {}
    table = [{"metric": row["metric"], name: row["value"], "95% interval": row["95% interval"]} for row in rows]
    for row in table if beside else ():
        value = beside.get(row["metric"])
        row["validation"] = "-" if value is None else f"{value:.4f}"
    return table


def tabulate_runs(folder: Path) -> list[dict[str, Any]]:
    """A row for each run in a folder; one that cannot be read says why."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of runs; `seqloom train DATA` makes runs/")
    return [_row(folder / name) for name in list_names(folder)]


def _row(folder: Path) -> dict[str, Any]:
    empty = dict.fromkeys(("model", "data", "kind", "steps", "epochs", "metric", "validation", "test", "state"))
    try:
        one = summarise_run(Run.load(folder))
    except ValueError as error:
        return {"run": folder.name} | empty | {"state": str(error)}
    known = one["test"] or one["valid"]
    metric = primary_metric(one["kind"], known) if known else None
    return {
        "run": one["name"],
        "model": one["model"],
        "data": one["task"],
        "kind": one["kind"],
        "steps": one["steps"],
        "epochs": one["epochs"] or None,  # data without end has none
        "metric": metric,
        "validation": one["valid"].get(metric),
        "test": one["test"].get(metric),
        "state": f"finished ({one['finished']})" if one["finished"] else "unfinished",
    }
