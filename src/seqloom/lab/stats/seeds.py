"""What several seeds say: a mean and its interval, paired differences, and p-values for many questions at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seqloom.lab.stats.interval import interval


@dataclass(frozen=True)
class Summary:
    """The mean of n values with its 95% t-interval; None where there are too few for it."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    failed: int


@dataclass(frozen=True)
class Difference:
    """The mean of n paired differences a - b, its 95% t-interval, and p of the paired t-test."""

    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    n: int


def summary(values: Sequence[float | None]) -> Summary:
    """Of one value a seed; None, or a value that is no number, is a seed that failed."""
    found = [v for v in values if v is not None and math.isfinite(v)]
    failed = len(values) - len(found)
    if not found:
        return Summary(None, None, None, 0, failed)
    mean = interval(found)
    if mean.half is None:
        return Summary(mean.mean, None, None, 1, failed)
    return Summary(mean.mean, mean.mean - mean.half, mean.mean + mean.half, mean.n, failed)


def paired(a: Sequence[float | None], b: Sequence[float | None]) -> Difference:
    """Seed by seed, a - b; a pair of which one has failed is left out."""
    pairs = zip(a, b, strict=True)
    apart = [x - y for x, y in pairs if x is not None and y is not None and math.isfinite(x) and math.isfinite(y)]
    known = summary(apart)
    if known.mean is None or known.low is None:
        return Difference(known.mean, None, None, None, known.n)
    return Difference(known.mean, known.low, known.high, _p(apart), known.n)


def _p(differences: Sequence[float]) -> float:
    from scipy import stats

    if all(math.isclose(d, differences[0], rel_tol=1e-12) for d in differences):  # no spread but rounding's
        return 0.0 if differences[0] else 1.0
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """p-values of a family of questions, each raised so that one false call among all stays as rare as p says.

    A question without an answer (None, NaN) has none after it and is not counted. Holm 1979, Scand. J. Statist. 6.
    """
    order = sorted((p, i) for i, p in enumerate(values) if p is not None and not math.isnan(p))
    raised: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        raised[i] = highest
    return raised
