"""Fit on validation rows what a trained model needs besides its weights.

That is the decision of a classifier (positive class, class weights, temperature and threshold) and the intervals of a
forecast.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Classes, Task
from seqloom.lab.training import decision as decisions
from seqloom.lab.training import prediction_intervals
from seqloom.lab.training.decision import Decision, explain_decision, fit_decision
from seqloom.lab.training.for_task import ForClassify, ForForecast, ForTask
from seqloom.lab.training.objective import balance_classes, choose_objective, find_positive
from seqloom.lab.training.settings import TrainSettings

if TYPE_CHECKING:  # it imports this module
    from seqloom.lab.training.run import Run

AIM_SETTINGS = ("metric", "class_weights", "positive", "threshold", "reject")  # of a training


def resolve_objective(task: Task, settings: TrainSettings) -> tuple[TrainSettings, str]:
    """Check the settings of metric and decision, and fill in those that follow from imbalanced classes.

    Returns:
        The settings, and a note for the user, "" if nothing was changed.

    Raises:
        UserError: If a setting does not fit the task.
    """
    check_decision(task, settings.positive, settings.threshold, settings.reject)
    threshold = settings.threshold if settings.reject is None else settings.threshold or ""
    objective = choose_objective(task, settings.metric, settings.class_weights, threshold)
    changes = {
        "metric": objective.metric.name if objective.is_chosen else None,
        "class_weights": objective.class_weights if task.kind == "classify" else None,
        "threshold": objective.threshold or None,
    }
    return settings.model_copy(update=changes), objective.note


def check_decision(task: Task, positive: str | None, threshold: str | None, reject: str | None) -> None:
    """Raise a UserError if the settings of a decision do not fit the task or each other."""
    classes = task.target.size if task.kind == "classify" and isinstance(task.target, Classes) else None
    if positive is not None:
        find_positive(task, positive)
    if threshold is not None:
        decisions.check_threshold(threshold, classes)
    if reject is not None:
        decisions.check_reject(reject, classes)
    if threshold is not None and reject is not None:
        raise UserError(f"threshold={threshold} and reject={reject} contradict each other; give one of them")


def prepare_decision(model: ForTask, task: Task, settings: TrainSettings) -> None:
    """Set the positive class and the class weights of a classifier before it is trained or fitted."""
    if not isinstance(model, ForClassify):
        return
    model.decision = Decision(find_positive(task, settings.positive))
    if settings.class_weights == "balanced":
        weights = balance_classes(task)
        model.decision = replace(model.decision, weights=weights)
        model.class_weights = torch.tensor(weights)


@torch.no_grad()
def decide(model: ForTask, task: Task, settings: TrainSettings) -> None:
    """Fit temperature, threshold and reject option of a trained classifier, or the intervals of a forecast."""
    if isinstance(model, ForForecast) and "valid" in task.splits:
        model.intervals = prediction_intervals.fit_intervals(model, task, settings.sizes)
    if not isinstance(model, ForClassify) or "valid" not in task.splits:
        return
    start, training = Decision(model.decision.positive, weights=model.decision.weights), model.training
    model.decision = Decision()  # raw scores
    device = next(model.parameters()).device
    zs, ys = [], []
    model.eval()
    try:
        for batch in task.batches("valid", **settings.sizes):
            assert batch.y is not None
            zs.append(model.scores(batch.to(device))[0].float().cpu())
            ys.append(batch.y)
    finally:
        model.train(training)
        model.decision = start
    if zs:
        model.decision = fit_decision(
            start, torch.cat(zs), torch.cat(ys), settings.threshold or "", settings.reject or ""
        )


def store_decision(folder: Path, model: ForTask) -> None:
    """Write the decision of a classifier, or the intervals of a forecast, to the folder of its run."""
    if isinstance(model, ForForecast) and model.intervals is not None:
        prediction_intervals.save(folder, model.intervals)
    if isinstance(model, ForClassify):
        decisions.save(folder, model.decision)


def restore_decision(folder: Path, model: ForTask) -> ForTask:
    """Give a classifier the decision, or a forecast the intervals, that its run stores; return the model."""
    if isinstance(model, ForForecast):
        model.intervals = prediction_intervals.load(folder)
    if isinstance(model, ForClassify):
        model.decision = decisions.load(folder)
    return model


def describe_decision(model: ForTask, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the decision of a classifier as JSON, {} for other models; classes by name if `names` are given."""
    if not isinstance(model, ForClassify):
        return {}
    record = asdict(model.decision)
    if names:
        record["positive"] = names[model.decision.positive] if len(names) == 2 else None
    return record


def explain_run(run: Run) -> list[str]:
    """Say in sentences how a run chooses a class, if it is not just the likeliest one."""
    target = run.task.target
    return explain_decision(target.names, decisions.load(run.folder)) if isinstance(target, Classes) else []


def change_decision(run: Run, model: ForTask, threshold: str | None, reject: str | None) -> None:
    """Replace the threshold and the reject option of a run's model.

    Args:
        run: The run; a goal such as recall=0.9 reads its validation rows again.
        model: The model of the run.
        threshold: The new threshold, or None.
        reject: The new reject option, or None; "0" to predict always.

    Raises:
        UserError: If they do not fit the task, or the data of the run are gone.
    """
    if threshold is None and reject is None:
        return
    check_decision(run.task, None, threshold, reject)
    assert isinstance(model, ForClassify)
    plain = replace(model.decision, threshold=None, reject=0.0)
    goal, value = decisions.parse_text(threshold, reject)
    if not goal:
        model.decision = replace(plain, reject=value) if threshold is None else replace(plain, threshold=value)
        return
    settings = run.settings.model_copy(update={"threshold": threshold, "reject": reject})
    model.decision = plain
    decide(model, reopen(run.record["source"]), settings)
