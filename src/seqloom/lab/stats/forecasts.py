"""Statistics of forecasts: conformal intervals, their coverage, and errors that do not depend on units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
LEVELS = (80, 95)  # percent of the future values that an interval is to contain
ENOUGH_SCORES = 39  # scores per step; with fewer, those of adjacent steps are pooled. Twice the minimum for 95 %


def conformal_quantile(scores: Array, level: float) -> float:
    """Return the conformal quantile: the smallest score that bounds a new one with probability `level`.

    It is the ceil((n + 1) level)-th smallest of n scores (Vovk et al. 2005; Lei et al. 2018), infinite if n is too
    small.

    Args:
        scores: (n,) absolute errors of rows that were not used for fitting; NaN is left out.
        level: Between 0 and 1.

    Example:
        >>> conformal_quantile(np.arange(1.0, 10.0), 0.8)
        8.0
        >>> conformal_quantile(np.arange(1.0, 10.0), 0.95)
        inf
    """
    known = np.sort(scores[np.isfinite(scores)])
    rank = math.ceil(round((len(known) + 1) * level, 9))
    return float(known[rank - 1]) if rank <= len(known) else math.inf


def fit_widths(scores: Array, level: float) -> Array:
    """Return the conformal quantile of each step and target.

    A step with fewer than ENOUGH_SCORES also uses those of the steps around it.

    Args:
        scores: (n, S, K) absolute errors of n windows; NaN if unknown.
        level: Between 0 and 1.

    Returns:
        (S, K), infinite where there are too few scores.
    """
    S, K = scores.shape[1:]
    widths = np.full((S, K), np.inf)
    for k in range(K):
        counts = np.isfinite(scores[..., k]).sum(0)
        for s in range(S):
            around = 0
            while counts[max(0, s - around) : s + around + 1].sum() < ENOUGH_SCORES and around < S:
                around += 1
            widths[s, k] = conformal_quantile(scores[:, max(0, s - around) : s + around + 1, k].ravel(), level)
    return widths


def sum_relative_errors(y: Array, p: Array) -> Array:
    """Return the sum of 2 |y - p| / (|y| + |p|) of each row, (n,); NaN is left out, and predicting 0 for 0 has error 0.

    Divided by the number of values it is the symmetric mean absolute percentage error, between 0 and 2.
    """
    size = np.abs(y) + np.abs(p)
    with np.errstate(divide="ignore", invalid="ignore"):
        errors = np.where(size > 0, 2 * np.abs(y - p) / size, np.where(np.isnan(size), np.nan, 0.0))
    return np.nansum(errors.reshape(len(y), -1), 1)


def count_inside(y: Array, bounds: Mapping[int, tuple[Array, Array]]) -> dict[str, Array]:
    """Count the values of each row within their intervals.

    Args:
        y: (n, S, K); NaN if unknown.
        bounds: The lower and upper ends (n, S, K) by level in percent; infinite if there is no interval.

    Returns:
        Columns "inside_80" and "bounded_80" (n,), the latter the number of values with an interval, for each level.
    """
    columns = {}
    for level, (low, high) in bounds.items():
        known = np.isfinite(y) & np.isfinite(low) & np.isfinite(high)
        inside = known & (low <= y) & (y <= high)
        columns[f"inside_{level}"] = inside.reshape(len(y), -1).sum(1).astype(np.float64)
        columns[f"bounded_{level}"] = known.reshape(len(y), -1).sum(1).astype(np.float64)
    return columns
