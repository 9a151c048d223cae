"""Confidence intervals of test metrics, and whether one model is significantly better than another.

A test metric varies with the seed and with the test rows. Rows are resampled with replacement (`stats.resampling`), the
same resamples for all models, so differences are paired; seeds give a t-interval. Both are independent, so their
half-widths add as squares. Where a row is either right or wrong, a bootstrap with few or no wrong rows would be too
narrow: intervals of shares, and of an F1 without any error, are computed from counts (Agresti and Min 2005, Stat. Med.
24, for differences of paired shares).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.lab.stats.intervals import Z_95, mean_interval, wilson_interval
from seqloom.lab.stats.metrics import Array, Columns, Metric, is_share_of_rows
from seqloom.lab.stats.resampling import count_blocks, draw_weights, find_interval

RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% interval, mean +- half; half is infinite if there are too few rows."""

    mean: float
    half: float
    values: list[float]  # one for each seed

    @property
    def has_interval(self) -> bool:
        """Whether the interval is known."""
        return math.isfinite(self.half)

    @property
    def is_significant(self) -> bool:
        """Whether the interval of a difference excludes 0."""
        return abs(self.mean) > self.half


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The metric of one model: (seeds,) values, and (seeds, RESAMPLES) values of resampled rows.

    units: rows or blocks in a resample.
    right: (n,) share of the seeds that predict a row correctly, if the metric is a share of rows.
    is_percent: whether the metric lies between 0 and 1.
    """

    values: Array
    resampled: Array
    units: int
    right: Array | None = None
    is_percent: bool = False


def bootstrap(models: Mapping[str, Sequence[Columns]], metric: Metric, overlap: int = 1) -> dict[str, Bootstrap]:
    """Resample the test rows of every model in the same way.

    Args:
        models: for each model the per-row columns of every seed.
        overlap: number of neighbouring rows that share steps of a series.

    Returns:
        The bootstrap of each model by name.
    """
    flat = [(name, columns) for name, seeds in models.items() for columns in seeds]
    if not flat:
        return {}
    n = len(next(iter(flat[0][1].values())))
    point = np.concatenate([metric.compute(columns, np.ones((1, n))) for _, columns in flat])
    drawn = [[metric.compute(columns, w) for _, columns in flat] for w in draw_weights(n, overlap, RESAMPLES)]
    resampled = np.concatenate([np.stack(part) for part in drawn], 1)  # (models x seeds, RESAMPLES)
    is_share = overlap == 1 and all(is_share_of_rows(metric, columns) for _, columns in flat)
    results: dict[str, Bootstrap] = {}
    for name in models:
        mine = [i for i, (other, _) in enumerate(flat) if other == name]
        right = None
        if is_share and metric.share is not None:
            right = np.mean([flat[i][1][metric.share[0]] for i in mine], 0)
        results[name] = Bootstrap(point[mine], resampled[mine], count_blocks(n, overlap), right, metric.percent)
    return results


def estimate(model: Bootstrap) -> Estimate:
    """Estimate a model's metric."""
    half = _half_width(model.resampled.mean(0), model.units)
    if model.right is None and not (half == 0 and model.is_percent):
        return _combine(model.values, half)
    part = float((model.values if model.right is None else model.right).mean())
    return _combine(model.values, max(abs(end - part) for end in wilson_interval(part, model.units)))


def estimate_difference(one: Bootstrap, other: Bootstrap) -> Estimate:
    """Estimate one - other, paired by seed; a model without seeds (a baseline) is paired with every seed."""
    counts = len(one.values), len(other.values)
    n = max(counts) if 1 in counts else min(counts)
    a, b = (np.resize(d.values, n) if len(d.values) == 1 else d.values[:n] for d in (one, other))
    if one.right is None or other.right is None:
        half = _half_width(one.resampled[:n].mean(0) - other.resampled[:n].mean(0), one.units)
        if half == 0 and one.is_percent:  # no resample differs: both are right, or one of them is wrong, in every row
            half = _half_width_of_paired_shares(np.full(one.units, float((a - b).mean())))
        return _combine(a - b, half)
    return _combine(a - b, _half_width_of_paired_shares(one.right - other.right))


def _half_width_of_paired_shares(d: Array) -> float:
    """Return the half-width for the mean of paired differences in [-1, 1], adding half a row to either side."""
    n, middle = len(d) + 2, float(d.sum()) / (len(d) + 2)
    half = Z_95 * math.sqrt((float((d**2).sum()) + 1) / n - middle**2) / math.sqrt(n)
    return half + abs(float(d.mean()) - middle)


def _half_width(resampled: Array, units: int) -> float:
    low, high = find_interval(0.0, resampled, units)  # the width does not depend on the value
    return (high - low) / 2


def _combine(values: Array, rows: float) -> Estimate:
    """Combine the half-width over rows with that over seeds."""
    seeds = mean_interval(values.tolist()).half or 0.0
    return Estimate(float(values.mean()), math.hypot(rows, seeds), values.tolist())
