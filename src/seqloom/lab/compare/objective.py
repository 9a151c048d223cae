"""The objective of all trainings of a comparison, and the order of models by their validation metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def rank(metric: Metric, valid: Mapping[str, float | None]) -> tuple[float, float]:
    """Return a sort key, smallest first: the metric, then the loss.

    The loss replaces a metric that was not computed, such as BLEU during training.
    """
    loss = _number(valid.get("loss"))
    if metric.name not in valid:
        return loss, loss
    value = _number(valid[metric.name])
    return (-value if metric.higher and math.isfinite(value) else value), loss


def _number(value: float | None) -> float:
    return math.inf if value is None or math.isnan(value) else value
