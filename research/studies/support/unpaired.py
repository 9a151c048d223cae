"""Differences between independent groups of seeds: Welch's test, on errors as ratios and on accuracies as odds."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from research.studies.support.summary import Difference

Scale = Literal["plain", "log", "logit"]
SMALLEST = 1e-12  # a continuous error below it is as good as 0


@dataclass(frozen=True)
class Change:
    """Two groups on a scale: `effect` is a difference (plain), a ratio (log) or a ratio of odds (logit), a to b.

    low, high: its 95% interval. p: Welch's test. All are None if a group has fewer than two values.
    """

    mean_a: float | None
    mean_b: float | None
    effect: float | None
    low: float | None
    high: float | None
    p: float | None
    n: tuple[int, int]


def compare_groups(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Return mean(a) - mean(b) of two independent groups with its 95% interval and the p-value of Welch's test.

    Seeds give different weights to different models, so their runs are not pairs. Welch 1947, Biometrika 34.
    `n` is the size of the smaller group. Groups whose values are all equal have an interval without width.
    """
    n = min(len(a), len(b))
    if not n:
        return Difference(None, None, None, None, 0)
    apart = math.fsum(a) / len(a) - math.fsum(b) / len(b)
    if n == 1:
        return Difference(apart, None, None, None, 1)
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (a, b)))
    if error <= 1e-12 * max(1e-300, *map(abs, (*a, *b))):  # equal up to rounding
        return Difference(apart, apart, apart, 1.0 if math.isclose(a[0], b[0], rel_tol=1e-12) else 0.0, n)
    from scipy import stats

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about a group whose values are all equal
        test = stats.ttest_ind(a, b, equal_var=False)
    interval = test.confidence_interval(0.95)
    return Difference(apart, float(interval.low), float(interval.high), float(test.pvalue), n)


def compare_ranks(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float | None]:
    """Compare two groups by ranks, for values such as -infinity that have no mean.

    Mann and Whitney 1947, Ann. Math. Statist. 18.

    Returns:
        The share of pairs in which a is larger (ties count half), and the p-value; None if a group has fewer than two.
    """
    if min(len(a), len(b)) < 2:
        return None, None
    pairs = [(x > y) + 0.5 * (x == y) for x in a for y in b]
    if len({*a, *b}) == 1:
        return 0.5, 1.0
    from scipy import stats

    bound = 1e300
    clipped = [[min(max(v, -bound), bound) for v in values] for values in (a, b)]
    return sum(pairs) / len(pairs), float(stats.mannwhitneyu(*clipped).pvalue)


def compare_on_scale(a: Sequence[float], b: Sequence[float], scale: Scale, resolution: float) -> Change:
    """Compare two groups on a scale on which seeds have similar variance: errors on "log", accuracies on "logit".

    Args:
        a: One value per seed.
        b: One value per seed, of another model.
        scale: "plain" compares means by their difference, "log" errors by their ratio, "logit" accuracies by odds.
        resolution: The smallest measurable error: half an answer for shares of test answers, `SMALLEST` for continuous
            values. Values are kept this far from 0, and from 1 on "logit", where the scale is infinite.

    Returns:
        The means on the original scale, the effect and its interval.
    """

    def log(v: float) -> float:
        return math.log(max(v, resolution))

    def logit(v: float) -> float:
        inside = min(max(v, resolution), 1 - resolution)
        return math.log(inside) - math.log1p(-inside)

    scales: dict[Scale, Callable[[float], float]] = {"plain": float, "log": log, "logit": logit}
    there = scales[scale]
    back: Callable[[float], float] = float if scale == "plain" else _exp
    d = compare_groups([there(v) for v in a], [there(v) for v in b])
    means = [math.fsum(values) / len(values) if values else None for values in (a, b)]
    effect, low, high = (None if v is None else back(v) for v in (d.mean, d.low, d.high))
    return Change(means[0], means[1], effect, low, high, d.p, (len(a), len(b)))


def _exp(value: float) -> float:
    """Return e^value, at most 1e300, so that it can be stored."""
    return math.exp(min(value, 690.0))
