"""A mean and how well it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """The mean of n values, with its 95% t-interval mean +- half; one value has none."""

    mean: float
    half: float | None
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The 95% interval of the mean of independent values."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    from scipy import stats

    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return Interval(mean, float(stats.t.ppf(0.975, n - 1)) * deviation / math.sqrt(n), n)
