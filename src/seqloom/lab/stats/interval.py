"""A mean, a share and a drawn number, and how well each is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z = 1.959964  # a normal variable is within +- Z in 95 of 100 cases


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


def share(part: float, n: int) -> tuple[float, float]:
    """The 95% interval of a share of n rows; unlike draws of the rows, it has a width where all or none are right.

    Wilson 1927, J. Am. Stat. Assoc. 22.
    """
    zz = Z**2 / n
    middle = (part + zz / 2) / (1 + zz)
    half = Z * math.sqrt(part * (1 - part) / n + zz / (4 * n)) / (1 + zz)
    return (0.0 if part == 0 else middle - half), (1.0 if part == 1 else middle + half)


def tail(n: int) -> float:
    """The quantile of draws of n things at which a 95% interval ends: further out than 0.025 where n is small.

    Hesterberg 2015, Am. Stat. 69, arXiv 1411.5279 (expanded percentiles).
    """
    from scipy import stats

    return float(stats.norm.cdf(-math.sqrt(n / (n - 1)) * stats.t.ppf(0.975, n - 1)))
