"""Summaries of seeds, differences of groups, and corrected p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seqloom.lab.stats.intervals import mean_interval


@dataclass(frozen=True)
class Summary:
    """The mean of n values with its 95% t-interval; None if there are too few values."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    failed: int


@dataclass(frozen=True)
class Difference:
    """A difference of means a - b, its 95% interval, the p-value of its test, and the size of the smaller group."""

    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


def summarise(values: Sequence[float | None]) -> Summary:
    """Summarise one value per seed; None, NaN and infinity count as failed seeds."""
    finite = [v for v in values if v is not None and math.isfinite(v)]
    failed = len(values) - len(finite)
    if not finite:
        return Summary(None, None, None, 0, failed)
    mean = mean_interval(finite)
    if mean.half is None:
        return Summary(mean.mean, None, None, 1, failed)
    return Summary(mean.mean, mean.mean - mean.half, mean.mean + mean.half, mean.n, failed)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Adjust the p-values of a family of tests so that the chance of any false positive stays below p.

    None and NaN are tests without a result: they stay None and are not counted. Holm 1979, Scand. J. Statist. 6.
    """
    order = sorted((p, i) for i, p in enumerate(values) if p is not None and not math.isnan(p))
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = highest
    return adjusted
