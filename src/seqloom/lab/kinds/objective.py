"""The objective of a training: the metric that selects weights and ranks models, and class weights.

Data are imbalanced if one class has at least 90 % of the training rows: always predicting it is then 90 % accurate,
so accuracy says little. The metric becomes the average precision of the rare class, or the balanced accuracy of
several classes, and rows are weighted so that all classes have the same total weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Classes, Task
from seqloom.lab.stats.metrics import METRICS, Array, Metric

OTHER_NAMES = {
    "roc_auc": "auroc",
    "auc": "auroc",
    "ap": "average_precision",
    "pr_auc": "average_precision",
    "log_loss": "loss",
    "exact_match": "exact",
    "per": "wer",
}
MAJORITY_SHARE = 0.9  # minimum share of one class in the training rows of imbalanced data
FEW_RARE_ROWS = 30  # test rows of rare classes below which a note says that scores are uncertain
# Metrics in which a rare class counts as much as a frequent one.
BALANCED = {"balanced_accuracy", "macro_f1", "f1", "auroc", "average_precision"}


@dataclass(frozen=True)
class Objective:
    """The objective."""

    metric: Metric
    is_chosen: bool = False  # whether it differs from the default of the kind, so that it also selects the best weights
    class_weights: str = "none"  # "balanced" or "none"
    threshold: str = ""  # the goal of the threshold, "" for none
    note: str = ""  # why the defaults were changed, "" if they were not


def choose_objective(
    task: Task, metric: Metric | None, default: Metric, class_weights: str | None, threshold: str | None
) -> Objective:
    """Choose the metric and the class weights of a task with classes; see `Kind.choose_objective`.

    Args:
        default: The metric without settings, if the classes are balanced.
    """
    chosen = default if metric is None else metric
    share, without = _find_majority(task)
    weights, goal, note = class_weights or "none", threshold or "", ""
    if share is not None and without:
        note = (
            f"imbalanced classes: one has {_format_share(share)} of the training rows and all {without} rows, which "
            "therefore cannot show whether a model recognises the rare classes; add rows of them"
        )
    elif share is not None:
        if metric is None:
            is_binary = task.target.size == 2
            chosen = METRICS["average_precision" if is_binary else "balanced_accuracy"]
        if class_weights is None and chosen.name in BALANCED:
            weights = "balanced"
        if threshold is None and task.target.size == 2 and chosen.name in BALANCED:
            goal = "f1"
        note = _explain(share, None if metric else chosen, weights if class_weights is None else "none", goal)
        note += _count_rare_rows(task)
    is_balanced = share is not None and not without
    return Objective(chosen, metric is not None or is_balanced, weights, goal, note)


def _find_majority(task: Task) -> tuple[float | None, str]:
    """Return the share of the most frequent class if the data are imbalanced, and the split without other classes."""
    if not isinstance(task.target, Classes) or task.target.size < 2:
        return None, ""
    counts = count_classes(task, "train")
    if not counts.sum() or counts.max() < MAJORITY_SHARE * counts.sum():
        return None, ""
    held_out = {"valid": "validation", "test": "test"}
    others = {s: np.delete(count_classes(task, s), int(counts.argmax())).sum() for s in held_out if s in task.splits}
    without = next((held_out[split] for split, number in others.items() if not number), "")
    return float(counts.max() / counts.sum()), without


def _format_share(share: float) -> str:
    return f"{share:.1%}" if share < 0.9995 else f"{share:.3%}"


def _explain(share: float, metric: Metric | None, weights: str, goal: str) -> str:
    changes = [] if metric is None else [f"models are ranked by {metric.title}, not accuracy"]
    if weights == "balanced":
        changes.append("all classes have the same total weight")
    if goal == "f1":
        changes.append("the threshold is the one of best F1 on the validation rows")
    text = f"imbalanced classes: one has {_format_share(share)} of the training rows"
    return f"{text}; {'; '.join(changes)} (--metric, --class-weights and --threshold change this)" if changes else text


def _count_rare_rows(task: Task) -> str:
    """Add a note if the test split has few rows of the rare classes."""
    if "test" not in task.splits:
        return ""
    counts = count_classes(task, "test")
    rare = int(counts.sum() - counts.max())
    return f"; only {rare} test rows are of a rare class, so scores are uncertain" if rare < FEW_RARE_ROWS else ""


def count_classes(task: Task, split: str) -> Array:
    """Return the number of rows of each class in a split, (K,)."""
    y = task.read_classes(split)
    return np.bincount(y[y >= 0], minlength=task.target.size)


def balance_classes(task: Task) -> tuple[float, ...]:
    """Return for each class the weight n / (K n_k), so that all have the same total weight and the mean is 1."""
    counts = np.maximum(count_classes(task, "train"), 1)
    return tuple((counts.sum() / (len(counts) * counts)).tolist())


def find_positive(task: Task, name: str | None) -> int:
    """Return the class that counts as positive: the named one, or the rarer of two in the training rows.

    Raises:
        UserError: If there is no such class, or there are not two classes.
    """
    if not isinstance(task.target, Classes) or task.target.size != 2:
        if name is not None:
            raise UserError(f"positive={name!r} is for tasks with two classes; {_describe_target(task)}")
        return 1
    if name is None:
        counts = count_classes(task, "train")
        return int(counts[1] <= counts[0])
    if name not in task.target.names:
        raise UserError(f"positive: there is no class {name!r}; choose one of {', '.join(task.target.names)}")
    return task.target.names.index(name)


def _describe_target(task: Task) -> str:
    if isinstance(task.target, Classes):
        return f"this one has {task.target.size}"
    return f"this is a task of kind {task.kind}"
