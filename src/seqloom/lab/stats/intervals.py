"""95% intervals of means, shares and bootstrap draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959964  # a standard normal variable is within +- this in 95% of all cases


@dataclass(frozen=True)
class Interval:
    """The mean of n values with its 95% t-interval, mean +- half; `half` is None for a single value."""

    mean: float
    half: float | None
    n: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with its 95% t-interval."""
    n = len(values)
    mean = sum(values) / n
    if n == 1:
        return Interval(mean, None, 1)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return Interval(mean, t_quantile(n - 1) * deviation / math.sqrt(n), n)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95% interval of a share of n rows.

    Unlike a bootstrap interval it has a width even if all rows, or none, are right. `share * n` need not be whole, as
    `scipy.stats.binomtest` asks for: a share may be a mean over seeds. Wilson 1927, J. Am. Stat. Assoc. 22.
    """
    zz = Z_95**2 / n
    middle = (share + zz / 2) / (1 + zz)
    half = Z_95 * math.sqrt(share * (1 - share) / n + zz / (4 * n)) / (1 + zz)
    return (0.0 if share == 0 else middle - half), (1.0 if share == 1 else middle + half)


def tail_quantile(n: int) -> float:
    """Return the quantile of bootstrap draws of n items at which a 95% interval ends; below 0.025 for small n.

    Hesterberg 2015, Am. Stat. 69, arXiv 1411.5279 (expanded percentiles).
    """
    from scipy import special

    return float(special.ndtr(-math.sqrt(n / (n - 1)) * t_quantile(n - 1)))


def t_quantile(degrees: int) -> float:
    """Return the end of the 95% interval of a t-distribution."""
    from scipy import special  # scipy.stats takes a second longer to import

    return float(special.stdtrit(degrees, 0.975))
