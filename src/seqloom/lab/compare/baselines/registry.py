"""The job that fits a baseline."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.data import TrainingSample, load_task, whole_task
from seqloom.lab.compare.timing import time_predictions
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.splits import FoldError
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Task
from seqloom.lab.files import checkpoint
from seqloom.lab.kinds.baselines import linear
from seqloom.lab.kinds.baselines.module import BaselineModule
from seqloom.lab.kinds.baselines.registry import DTW, ROCKET, Fit, baselines
from seqloom.lab.kinds.decision import Decision
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.objective import balance_classes, find_positive
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats.metrics import Scores, compute_scores
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.results import finite_or_none
from seqloom.lab.training.run import METRICS, Run

# These choose their settings on training rows alone, so that the final model can be fitted to validation rows too.
REFITTED = {ROCKET, DTW}
WEIGHTED = {linear.fit_logistic, linear.fit_logistic_with_letters, linear.fit_overlap}  # these take class weights
MOST_REFITTED, REFIT_SHARE = 500, 0.3  # training rows up to which this is worth it; share of the time for the first fit
FEW_VALIDATED, PARTS = 50, 5  # with fewer validation rows, baselines are ranked by five times as many, or by all rows
FIRST_SAMPLE, GROWTH = 2_000, 8  # rows of the first sample if time is limited, and how much the next one is larger
ESTIMATE_SHARE = 0.6  # share of the time for a larger sample by estimate; the rest is for errors of the estimate
# These use at most one token of the input: a model that is no better has learned nothing.
BLIND = {"majority", "most frequent labels", "mean", "most frequent tag", "most frequent text", "unigram", "bigram"}
QUICK = BLIND | {"mean of the past", "last value", "seasonal naive"}  # take milliseconds on small data


def fit_baseline(
    source: Mapping[str, Any],
    name: str,
    batch: int,
    run: str,
    seconds: float | None,
    folder: Path,
    aim: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit a baseline (a job), save it as a run, and store the scores of its test rows in the job's folder.

    Args:
        source: where the data come from.
        name: the baseline.
        batch: examples per batch when scoring.
        run: the folder of the run to write.
        seconds: fit to a sample of the training rows if all would take longer; None for all rows.
        folder: the job's folder.
        aim: training settings of metric and decision.
    """
    task = load_task(source)
    settings = TrainSettings(model=name, batch=batch, **(aim or {}))
    began = time.perf_counter()
    fit = baselines(task)[name]
    weights = balance_classes(task) if settings.class_weights == "balanced" and fit in WEIGHTED else ()
    if weights:
        fit = partial(fit, weights=weights)
    model, rows = fit_within(fit, task, seconds)
    model = model.eval()
    if model.decision is not None:
        model.decision = Decision(find_positive(task, settings.positive), weights=weights)
    taken = time.perf_counter() - began
    valid = compute_scores(row_scores.score_rows(model, task, "valid", batch))
    parts = None
    if rows is None and (seconds is None or PARTS * taken <= seconds):
        parts = score_parts(fit, open_parts(task, source), model.decision, batch)
    is_small = (task.splits["train"].size or MOST_REFITTED + 1) <= MOST_REFITTED
    if name in REFITTED and is_small and (seconds is None or taken <= REFIT_SHARE * seconds):
        final = fit(task, ("train", "valid")).eval()
    else:
        final = model
    model.fit_decision(task, settings)  # before the final fit, which may have seen the validation rows
    final.decision = model.decision
    model = final
    latency = time_predictions(model, task)
    columns = row_scores.score_rows(model, task, "test", batch)
    row_scores.save(folder, columns)
    shutil.rmtree(run, ignore_errors=True)  # left by a process that was killed here
    stored = Run.create(run, settings, whole_task(task), source, describe_baseline(model))
    model.store_decision(stored.folder)
    save_baseline(stored, model, taken, valid, compute_scores(columns, intervals=True, overlap=task.overlap))
    return {
        "parameters": int(model.model.size),
        "seconds": taken,
        "rows": rows,
        "latency": latency,
        "valid": {name: finite_or_none(value) for name, value in valid.values.items()},
        "parts": parts,
    }


def open_parts(task: Task, source: Mapping[str, Any]) -> list[Task]:
    """Return the task with other validation rows, if it has too few of them to rank baselines.

    Rows that are not for testing are validated once each; windows of a series, also at earlier times. A comparison with
    folds has enough, and none is returned for data with validation rows of their own.

    Args:
        task: The task.
        source: Where its data come from.
    """
    if (task.splits["valid"].size or FEW_VALIDATED) >= FEW_VALIDATED or "fold" in source.get("options", {}):
        return []
    if isinstance(task, WindowsTask):
        return [task, *task.list_earlier_origins(PARTS - 1)]
    if not isinstance(task, RowsTask):
        return []
    options = dict(source["options"])
    try:
        parts = [reopen({**source, "options": {**options, "valid_part": f"{k + 1}/{PARTS}"}}) for k in range(PARTS)]
    except FoldError:
        return []
    return parts if all(part.target == task.target for part in parts) else []


def score_parts(fit: Fit, parts: list[Task], decision: Decision | None, batch: int) -> dict[str, Any] | None:
    """Return the number of validation rows of all parts, and their metrics; None if there are no parts.

    Args:
        fit: Fits the baseline to a part.
        parts: What `open_parts` returned.
        decision: How the baseline decides between classes.
        batch: Examples per batch when scoring.
    """
    columns = []
    for part in parts:
        model = fit(part).eval()
        model.decision = decision
        columns.append(row_scores.score_rows(model, part, "valid", batch))
    if not columns:
        return None
    scores = compute_scores({name: np.concatenate([one[name] for one in columns]) for name in columns[0]})
    return {"rows": scores.rows, "valid": {name: finite_or_none(value) for name, value in scores.values.items()}}


def fit_within(
    fit: Fit, task: Task, seconds: float | None, clock: Callable[[], float] = time.perf_counter
) -> tuple[ForTask, int | None]:
    """Fit a baseline to as many training rows as the time allows, growing the sample step by step.

    Returns:
        The model, and the number of rows if it was fitted to a sample.
    """
    size = task.splits["train"].size
    if seconds is None or size is None or size <= GROWTH * FIRST_SAMPLE:
        return fit(task), None
    end, rows = clock() + seconds, FIRST_SAMPLE
    while True:
        began = clock()
        model = fit(TrainingSample(task, rows))
        now = clock()
        affordable = int(rows * (end - now) / max(now - began, 1e-6) * ESTIMATE_SHARE)  # time grows with the rows
        if affordable < min(2 * rows, size):
            return model, rows
        rows = min(affordable, GROWTH * rows)
        if rows >= size:
            return fit(task), None


def describe_baseline(model: ForTask) -> dict[str, Any]:
    """Return the class and the settings of a fitted baseline, JSON-serialisable."""
    module: BaselineModule = model.model
    return {"class": type(module).__name__, "settings": module.settings()}


def save_baseline(run: Run, model: ForTask, seconds: float, valid: Scores, test: Scores) -> None:
    """Write the arrays and the metrics of a fitted baseline to its run."""
    checkpoint.write(run.folder / "best", {"format": 1, "step": 0}, weights=model.model.arrays())
    journal = Journal(run.folder / METRICS, 0)
    journal.write(step=0, epoch=0, split="valid", seconds=round(seconds, 3), **valid.values)
    intervals = {f"{name}_interval": [finite_or_none(end) for end in ends] for name, ends in test.intervals.items()}
    journal.write(step=0, split="test", rows=test.rows, **test.values, **intervals)
    journal.close()
