"""Outcomes that are solved or not: counts with exact intervals and Fisher's test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Count:
    """`hits` of `n` independent trials, with the exact 95% interval of their share."""

    hits: int
    n: int
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.hits} of {self.n}"


def count_hits(outcomes: Iterable[bool]) -> Count:
    """Count successes; the interval is that of Clopper and Pearson 1934, Biometrika 26.

    It covers the true share in at least 95% of all cases for every n, unlike a t-interval, and stays within 0 and 1.

    Example:
        >>> one = count_hits([True] * 4 + [False])
        >>> str(one), round(one.low, 3), round(one.high, 3)
        ('4 of 5', 0.284, 0.995)
    """
    from scipy import stats

    values = [bool(v) for v in outcomes]
    hits, n = sum(values), len(values)
    if not n:
        return Count(0, 0, 0.0, 1.0)
    interval = stats.binomtest(hits, n).proportion_ci(0.95, method="exact")
    return Count(hits, n, float(interval.low), float(interval.high))


def compare_counts(a: Count, b: Count) -> float | None:
    """Return the p-value of Fisher's exact test, two-sided; None if one side has no trials."""
    from scipy import stats

    if not a.n or not b.n:
        return None
    return float(stats.fisher_exact([[a.hits, a.n - a.hits], [b.hits, b.n - b.hits]]).pvalue)
