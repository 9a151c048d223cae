"""The objective of all trainings of a comparison: metric, class weights, threshold and reject option."""

from __future__ import annotations

from typing import Any

from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats.metrics import Metric
from seqloom.lab.training.calibration import AIM_SETTINGS, resolve_objective


def resolve_aim(task: Task, settings: CompareSettings) -> tuple[Metric, dict[str, Any]]:
    """Return the metric that ranks the models, and the settings for each training; add a note to the task.

    Raises:
        UserError: If a setting does not fit the task.
    """
    aim, note = resolve_objective(task, TrainSettings(**{name: getattr(settings, name) for name in AIM_SETTINGS}))
    if note:
        task.notes.say(note)
    options = {name: getattr(aim, name) for name in AIM_SETTINGS}
    kind = kind_of(task)
    if (settings.folds or 1) > 1:
        options["positive"] = kind.name_positive(task, settings.positive)  # the rarer class of folds may differ
    return kind.choose_objective(task, aim.metric).metric, options
