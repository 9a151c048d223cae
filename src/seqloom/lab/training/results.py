"""Metrics of runs: recorded ones, and those of a trained model on other data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Batch, DataSource, Task
from seqloom.lab.files import checkpoint
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.kinds.registry import KINDS, kind_of
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.stats.resampling import explain_few_rows
from seqloom.lab.training.calibration import change_decision
from seqloom.lab.training.folders import list_names
from seqloom.lab.training.run import Run
from seqloom.lab.training.scoring import score_split

BATCH = 256  # rows that are compared at a time, to find those that a run was trained on
FINISHED = "finished"  # prefix of the state of a run, followed by its reason in brackets
# Other keys in a line of metrics.jsonl.
NOT_METRICS = ("step", "epoch", "split", "lr", "seconds", "train_loss", "rows", "skipped")


def evaluate(
    run: Run,
    data: DataSource | None = None,
    split: str | None = None,
    device: str = "cpu",
    metric: str | None = None,
    threshold: str | None = None,
) -> dict[str, Any]:
    """Compute every metric of the run's kind, with 95% intervals.

    Args:
        data: A file with targets; its rows that were used for training are left out, with a warning. Default: the data
            from which the run took its training rows.
        split: The split to use. Default: "test", or "valid" if there is no test split.
        metric: Compute only this one.
        threshold: Least probability to predict the positive class, or a goal such as recall=0.9. Default: the run's.

    Returns:
        A JSON-serialisable document with "metrics", "intervals" and what they were measured on.

    Raises:
        UserError: If the data has no such split, or the metric does not fit the task.
    """
    chosen = None if metric is None else kind_of(run.task).find_metric(run.task, metric).name
    task = reopen(run.record["source"]) if data is None else run.task.open_file(data)
    held_out = [name for name in ("test", "valid") if name in task.splits]
    if split is None and not held_out:
        raise UserError(f"task {task.name!r} has no held-out rows; give a file, or --split train")
    split = split or held_out[0]
    if split not in task.splits:
        raise UserError(f"there is no split {split!r}; there are {', '.join(task.splits)}")
    model = run.model("best", device)
    change_decision(run, model, threshold, None)
    unseen, warning = (None, "") if data is None else list_unseen(run, task, data)
    columns = score_split(model, task, split, **run.settings.sizes, only=unseen)
    scores = compute_scores(columns, intervals=True, overlap=task.overlap)
    names = [name for name in scores.values if chosen in (None, name)]
    warnings = [warning] if warning else []
    kind = kind_of(task)
    if kind.has_values or not scores.intervals:
        few = explain_few_rows(scores.rows, task.overlap, kind.row)
        warnings += [few[0].lower() + few[1:].rstrip(".")] if few else []
    return {
        "run": str(run.folder),
        "data": task.name if data is None else str(data),
        "split": split,
        "examples": scores.rows,
        "metrics": {name: finite_or_none(scores.values[name]) for name in names},
        "intervals": {n: [finite_or_none(end) for end in scores.intervals[n]] for n in names if n in scores.intervals},
        **kind.describe_test(run.task, model, columns),
        "warnings": [*warnings, *(task.notes.warnings if data is not None else [])],
    }


def finite_or_none(value: float) -> float | None:
    """Return None in place of NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def tabulate_metrics(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of a document as table rows, one per metric."""
    rows = []
    for name, value in document["metrics"].items():
        ends = document["intervals"].get(name)
        interval = f"{ends[0]:.4f} to {ends[1]:.4f}" if ends and None not in ends else "-"
        rows.append({"metric": name, "value": _format(value), "95% interval": interval})
    return rows


def _format(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def summarise_run(run: Run) -> dict[str, Any]:
    """Return settings, progress and metrics of a run: those of the best validation, and of the test if it was run."""
    lines = run.metrics()
    best = _find_best_step(run)
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
        "skipped_steps": last.get("skipped", 0),
        "best_step": best,
        "valid": _select_metrics(valid),
        "test": _select_metrics(test),
        "test_intervals": {k.removesuffix("_interval"): v for k, v in test.items() if k.endswith("_interval")},
        "settings": run.settings.model_dump(),
    }


def _find_best_step(run: Run) -> int | None:
    try:
        best = checkpoint.find(run.folder / "best")
    except DamagedError:
        return None
    return None if best is None else int(best.facts["step"])


def _select_metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in NOT_METRICS and not k.endswith("_interval")}


def tabulate_results(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of one run as table rows: test and validation, or validation alone."""
    test, valid = document["test"], document["valid"]
    rows = tabulate_metrics({"metrics": test or valid, "intervals": document["test_intervals"]})
    return [
        {"metric": row["metric"], "test" if test else "validation": row["value"], "95% interval": row["95% interval"]}
        | ({"validation": _format(valid.get(row["metric"]))} if test and valid else {})
        for row in rows
    ]


def tabulate_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a table row for each run in a folder; the "state" of an unreadable run is its error."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of runs; `seqloom train DATA` creates runs/")
    return [_tabulate_run(folder / name) for name in list_names(folder)]


def _tabulate_run(folder: Path) -> dict[str, Any]:
    empty = dict.fromkeys(("model", "data", "kind", "steps", "epochs", "metric", "validation", "test", "state"))
    try:
        run = summarise_run(Run.load(folder))
    except ValueError as error:
        return {"run": folder.name} | empty | {"state": str(error)}
    values = run["test"] or run["valid"]
    metric = KINDS[run["kind"]].choose_shown(values, run["settings"]["metric"]) if values else None
    return {
        "run": run["name"],
        "model": run["model"],
        "data": run["task"],
        "kind": run["kind"],
        "steps": run["steps"],
        "epochs": run["epochs"] or None,  # endless data has none
        "metric": metric,
        "validation": run["valid"].get(metric),
        "test": run["test"].get(metric),
        "state": f"{FINISHED} ({run['finished']})" if run["finished"] else "unfinished",
    }


def list_unseen(run: Run, task: Task, file: DataSource) -> tuple[set[int] | None, str]:
    """Find the rows of another file that are not among the training rows of a run, by their encoded input and target.

    Args:
        task: The file, opened with the encoding of the run.
        file: Its name, for messages.

    Returns:
        The rows of its split "test", and a warning. None and "" if all of them are new, or if the training data no
        longer exist.

    Raises:
        UserError: If no row is new.
    """
    if kind_of(task).continues_text:  # its pieces depend on where the text begins
        return None, ""
    try:
        trained = reopen(run.record["source"])
    except UserError:
        return None, ""
    if trained.splits["train"].size is None:
        return None, ""
    known = {key for batch in trained.batches("train", batch=BATCH) for _, key in _identify_rows(batch)}
    keys = [pair for batch in task.batches("test", batch=BATCH) for pair in _identify_rows(batch)]
    unseen = {row for row, key in keys if key not in known}
    if len(unseen) == len(keys):
        return None, ""
    if not unseen:
        raise UserError(
            f"{file}: the run was trained on all of its rows; evaluate the run without a file to score held-out rows"
        )
    seen = len(keys) - len(unseen)
    equal = "equals a training row" if seen == 1 else "equal training rows"
    verb = "is" if seen == 1 else "are"
    return (
        unseen,
        f"{count(seen, 'row')} of {len(keys):,} in {file} {equal}, as the model reads them, and {verb} left out",
    )


def _identify_rows(batch: Batch) -> Iterator[tuple[int, bytes]]:
    """Yield the position and a hash of each row, which do not depend on its padding."""
    y_lengths = batch.lengths if batch.y_lengths is None else batch.y_lengths
    for k, (row, steps, targets) in enumerate(
        zip(batch.rows.tolist(), batch.lengths.tolist(), y_lengths.tolist(), strict=True)
    ):
        key = blake2b(batch.x[k, :steps].contiguous().numpy().tobytes(), digest_size=16)
        if batch.y is not None:
            y = batch.y[k]
            is_sequence = y.dim() > 0 and not torch.is_floating_point(y)
            key.update((y[:targets] if is_sequence else y).contiguous().numpy().tobytes())
        yield row, key.digest()
