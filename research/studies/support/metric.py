"""Metrics of trials. The kind of a metric says which values are better and possible, and how seeds are compared."""

from __future__ import annotations

import math
from dataclasses import dataclass

from research.studies.support.unpaired import SMALLEST, Scale


@dataclass(frozen=True)
class MetricKind:
    """What follows from the kind of a metric.

    `is_counted`: whether a value is a number of answers divided by another one, so that n answers show no error below
    half an answer; None if that depends on the condition.
    """

    lower: bool  # lower is better
    scale: Scale  # on which seeds are compared
    is_counted: bool | None
    low: float = 0.0  # the lowest and the highest possible value
    high: float = math.inf


ACCURACY = MetricKind(lower=False, scale="logit", is_counted=True, high=1.0)
ERROR = MetricKind(lower=True, scale="log", is_counted=False)  # absolute and squared errors, losses, perplexities
COST = MetricKind(lower=True, scale="log", is_counted=False)  # times and sizes
# Wrong answers under some conditions, absolute or squared errors under others; often relative to a trivial baseline.
MIXED_ERROR = MetricKind(lower=True, scale="log", is_counted=None)
AMOUNT = MetricKind(lower=False, scale="plain", is_counted=False)  # information, distances, BLEU
SCALED = MetricKind(lower=False, scale="plain", is_counted=False, low=-math.inf, high=1.0)  # 0 is chance


@dataclass(frozen=True)
class TrialMetric:
    """A score of a model: a name and a kind, from which everything else about its values follows."""

    name: str
    kind: MetricKind
    log: bool = False  # drawn on a logarithmic axis
    solved: float | None = None  # the value from which a problem counts as solved, if there is one
    highest: float | None = None  # the highest possible value, if it is below that of the kind

    @property
    def lower(self) -> bool:
        """Whether lower values are better."""
        return self.kind.lower

    @property
    def scale(self) -> Scale:
        """The scale on which seeds are compared."""
        return self.kind.scale

    def resolution(self, answers: int | None) -> float:
        """Return the smallest error that a test set can show.

        Args:
            answers: How many test answers are right or wrong: for an accuracy all of them, for an error
                relative to a baseline those that the baseline gets wrong. None if the error is continuous.

        Raises:
            ValueError: If an accuracy has no number of answers, or a continuous metric has one.
        """
        if self.kind.is_counted is not None and self.kind.is_counted != (answers is not None):
            expected = "a number of answers" if self.kind.is_counted else "no number of answers: it is continuous"
            raise ValueError(f"the metric {self.name!r} needs {expected}, got {answers}")
        return SMALLEST if answers is None else 0.5 / answers

    def cut(self, value: float | None) -> float | None:
        """Return the end of an interval, moved to the nearest value that the metric can have."""
        if value is None:
            return None
        return max(self.kind.low, min(value, self.kind.high if self.highest is None else self.highest))

    def solves(self, value: float | None) -> bool:
        """Return whether a value is a solution; a failed training is none."""
        if value is None or self.solved is None:
            return False
        return value < self.solved if self.lower else value >= self.solved

    def is_far(self, value: float | None) -> bool:
        """Return whether a value is no solution, with at least twice the error that a solution may have."""
        if self.solved is None:
            return False
        if value is None:
            return True
        return value >= 2 * self.solved if self.lower else 1 - value >= 2 * (1 - self.solved)
