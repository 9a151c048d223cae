"""The objective of a training: the metric that selects weights and ranks models, and class weights."""

from __future__ import annotations

from dataclasses import dataclass

from seqloom.lab.stats.metrics import Metric

OTHER_NAMES = {
    "roc_auc": "auroc",
    "auc": "auroc",
    "ap": "average_precision",
    "pr_auc": "average_precision",
    "log_loss": "loss",
    "exact_match": "exact",
    "per": "wer",
}


@dataclass(frozen=True)
class Objective:
    """The objective.

    Attributes:
        metric: The metric.
        is_chosen: Whether it differs from the default of the kind, so that it also selects the best weights.
        class_weights: "balanced" or "none".
        threshold: The goal of the threshold, "" for none.
        note: Why the defaults were changed, "" if they were not.
    """

    metric: Metric
    is_chosen: bool = False
    class_weights: str = "none"
    threshold: str = ""
    note: str = ""
