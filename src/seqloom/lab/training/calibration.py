"""The settings of metric and decision: checked, filled in from the data, and changed for a finished run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import reopen
from seqloom.lab.data.task import Task
from seqloom.lab.kinds import decision as decisions
from seqloom.lab.kinds.decision import explain_decision
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.objective import find_positive
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings

if TYPE_CHECKING:  # it imports this module
    from seqloom.lab.training.run import Run

AIM_SETTINGS = ("metric", "class_weights", "positive", "threshold", "reject")  # settings of a training


def resolve_objective(task: Task, settings: TrainSettings) -> tuple[TrainSettings, str]:
    """Check the settings of metric and decision, and fill in those that follow from imbalanced classes.

    Returns:
        The settings, and a note for the user, "" if nothing was changed.

    Raises:
        UserError: If a setting does not fit the task.
    """
    check_decision(task, settings.positive, settings.threshold, settings.reject)
    threshold = settings.threshold if settings.reject is None else settings.threshold or ""
    objective = kind_of(task).choose_objective(task, settings.metric, settings.class_weights, threshold)
    changes = {
        "metric": objective.metric.name if objective.is_chosen else None,
        "class_weights": objective.class_weights if kind_of(task).list_decided(task) else None,
        "threshold": objective.threshold or None,
    }
    return settings.model_copy(update=changes), objective.note


def check_decision(task: Task, positive: str | None, threshold: str | None, reject: str | None) -> None:
    """Raise a UserError if the settings of a decision do not fit the task or each other."""
    classes = len(kind_of(task).list_decided(task)) or None
    if positive is not None:
        find_positive(task, positive)
    if threshold is not None:
        decisions.check_threshold(threshold, classes)
    if reject is not None:
        decisions.check_reject(reject, classes)
    if threshold is not None and reject is not None:
        raise UserError(f"threshold={threshold} and reject={reject} contradict each other; give one of them")


def explain_run(run: Run) -> list[str]:
    """Describe in sentences how a run chooses a class, unless it is simply the most likely one."""
    names = kind_of(run.task).list_decided(run.task)
    return explain_decision(names, decisions.load(run.folder, len(names))) if names else []


def change_decision(run: Run, model: ForTask, threshold: str | None, reject: str | None) -> None:
    """Replace the threshold and the reject option of a run's model.

    Args:
        run: The run; a goal such as recall=0.9 reads its validation rows again.
        threshold: The new threshold, or None.
        reject: The new reject option, or None; "0" to predict always.

    Raises:
        UserError: If they do not fit the task, or the data of the run are gone.
    """
    if threshold is None and reject is None:
        return
    check_decision(run.task, None, threshold, reject)
    assert model.decision is not None
    plain = replace(model.decision, threshold=None, reject=0.0)
    goal, value = decisions.parse_text(threshold, reject)
    if not goal:
        model.decision = replace(plain, reject=value) if threshold is None else replace(plain, threshold=value)
        return
    settings = run.settings.model_copy(update={"threshold": threshold, "reject": reject})
    model.decision = plain
    model.fit_decision(reopen(run.record["source"]), settings)
