"""Confidence intervals of test metrics, and whether one model is significantly better than another.

A test metric varies with the seed and with the test rows. Rows are resampled with replacement (the same resamples
for all models, so differences are paired; neighbouring windows of a series overlap and are resampled in blocks);
seeds give a t-interval. Both are independent, so their half-widths add as squares. Where a row is either right or
wrong, a bootstrap with few or no wrong rows would be too narrow: intervals of shares are computed from counts.

Efron 1979, Ann. Statist. 7 (bootstrap); Kuensch 1989, Ann. Statist. 17 (blocks); Agresti and Min 2005, Stat. Med. 24
(differences of paired shares).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from seqloom.lab.compare.metric import Columns, RatioMetric
from seqloom.lab.stats.intervals import Z_95, mean_interval, tail_quantile, wilson_interval
from seqloom.lab.stats.metrics import Array

RESAMPLES = 1000
WEIGHTS_IN_MEMORY = 4_000_000
FEWEST_BLOCKS = 5  # fewer blocks give no meaningful bootstrap


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its 95% interval, mean +- half."""

    mean: float
    half: float
    values: list[float]  # one for each seed

    @property
    def is_significant(self) -> bool:
        """Whether the interval of a difference excludes 0."""
        return abs(self.mean) > self.half


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """The metric of one model: (seeds,) values, and (seeds, RESAMPLES) values of resampled rows.

    units: rows or blocks in a resample.
    right: (n,) share of the seeds that predict a row correctly, if the metric is a share of rows.
    """

    values: Array
    resampled: Array
    units: int
    right: Array | None = None


def bootstrap(models: Mapping[str, Sequence[Columns]], metric: RatioMetric, block: int = 1) -> dict[str, Bootstrap]:
    """Resample the test rows of every model in the same way.

    Args:
        models: for each model the per-row columns of every seed.
        metric: the metric to compute.
        block: number of neighbouring rows that are resampled together.

    Returns:
        The bootstrap of each model by name.
    """
    flat = [(name, columns) for name, seeds in models.items() for columns in seeds]
    if not flat:
        return {}
    table = np.stack([metric.sums(c) for _, c in flat], 1)  # (n, models x seeds, sums)
    above, below = table[..., 0], table[..., 1]  # of a ratio
    point = metric.value(table.sum(0))
    block = min(block, max(1, len(above) // FEWEST_BLOCKS))
    parts = [metric.value(np.tensordot(w, table, 1)) for w in _weights(len(above), block)]
    resampled = np.concatenate(parts)  # (RESAMPLES, models x seeds)
    is_share = metric.percent and block == 1 and bool((below == 1).all())
    results: dict[str, Bootstrap] = {}
    for name in models:
        mine = [i for i, (other, _) in enumerate(flat) if other == name]
        right = above[:, mine].mean(1) if is_share else None
        results[name] = Bootstrap(point[mine], resampled[:, mine].T, -(-len(above) // block), right)
    return results


def _weights(n: int, block: int) -> Iterator[Array]:
    """Yield (resamples, n): how often each row occurs in a resample."""
    random = np.random.default_rng(0)
    blocks = -(-n // block)
    size = max(1, min(RESAMPLES, WEIGHTS_IN_MEMORY // n))
    for start in range(0, RESAMPLES, size):
        count = min(size, RESAMPLES - start)
        first = random.integers(blocks, size=(count, blocks)) + blocks * np.arange(count)[:, None]
        counts = np.bincount(first.ravel(), minlength=count * blocks).reshape(count, blocks)
        yield np.repeat(counts, block, 1)[:, :n].astype(np.float64)


def estimate(model: Bootstrap) -> Estimate:
    """Estimate a model's metric."""
    if model.right is None:
        return _combine(model.values, _half_width(model.resampled.mean(0), model.units))
    part = float(model.right.mean())
    return _combine(model.values, max(abs(end - part) for end in wilson_interval(part, model.units)))


def estimate_difference(one: Bootstrap, other: Bootstrap) -> Estimate:
    """Estimate one - other, paired by seed; a model without seeds (a baseline) is paired with every seed."""
    counts = len(one.values), len(other.values)
    n = max(counts) if 1 in counts else min(counts)
    a, b = (np.resize(d.values, n) if len(d.values) == 1 else d.values[:n] for d in (one, other))
    if one.right is None or other.right is None:
        return _combine(a - b, _half_width(one.resampled[:n].mean(0) - other.resampled[:n].mean(0), one.units))
    return _combine(a - b, _half_width_of_paired_shares(one.right - other.right))


def _half_width_of_paired_shares(d: Array) -> float:
    """Return the half-width for the mean of paired differences in [-1, 1], adding half a row to either side."""
    n, middle = len(d) + 2, float(d.sum()) / (len(d) + 2)
    half = Z_95 * math.sqrt((float((d**2).sum()) + 1) / n - middle**2) / math.sqrt(n)
    return half + abs(float(d.mean()) - middle)


def _half_width(resampled: Array, units: int) -> float:
    end = tail_quantile(units) if units > 1 else 0.0
    low, high = np.quantile(resampled, (end, 1 - end))
    return float(high - low) / 2


def _combine(values: Array, rows: float) -> Estimate:
    """Combine the half-width over rows with that over seeds."""
    seeds = mean_interval(values.tolist()).half or 0.0
    return Estimate(float(values.mean()), math.hypot(rows, seeds), values.tolist())
