"""The order of models by their validation metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from seqloom.lab.stats.metrics import Metric


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
