"""How well a number is known, and whether one model really is better than another.

Two things move a test number: other seeds, and other test rows. Rows are drawn again with replacement (the same
draws for all models, so differences are paired; neighbouring windows of a series are drawn together, for they
overlap); seeds give a t-interval. Both are independent, so their half-widths add as squares. Where a row is right or
wrong, few wrong rows, or none, would move the draws too little: shares and their differences follow from counts.

Efron 1979, Ann. Statist. 7 (bootstrap); Kuensch 1989, Ann. Statist. 17 (blocks); Agresti and Min 2005, Stat. Med. 24
(differences of paired shares).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.lab.compare.metric import Columns, Metric
from seqloom.lab.stats.intervals import Z_95, mean_interval, tail_quantile, wilson_interval
from seqloom.lab.stats.metrics import Array

DRAWS = 1000
AT_ONCE = 4_000_000  # weights that are held at a time
FEWEST = 5  # blocks: of fewer, draws say nothing


@dataclass(frozen=True)
class Known:
    """A mean over seeds and how far off it may be (95%)."""

    mean: float
    half: float
    values: list[float]

    @property
    def real(self) -> bool:
        """Of a difference: whether 0 lies outside."""
        return abs(self.mean) > self.half


@dataclass(frozen=True, eq=False)
class Drawn:
    """Of one model: a value for each seed, and (seeds, draws) values of rows drawn again, `units` of them each time.

    right: (n,) the share of seeds that have a row right, where the metric is a share of rows.
    """

    values: Array
    drawn: Array
    units: int
    right: Array | None = None


def drawn(models: Mapping[str, Sequence[Columns]], metric: Metric, block: int = 1) -> dict[str, Drawn]:
    """Every model under the same draws."""
    flat = [(name, columns) for name, seeds in models.items() for columns in seeds]
    if not flat:
        return {}
    above = np.stack([np.asarray(metric.above(c), dtype=np.float64) for _, c in flat], 1)  # (n, models x seeds)
    below = np.stack([np.asarray(metric.below(c), dtype=np.float64) for _, c in flat], 1)
    point = metric.shape(above.sum(0) / np.maximum(below.sum(0), 1e-12))
    block = min(block, max(1, len(above) // FEWEST))
    parts = [metric.shape((w @ above) / np.maximum(w @ below, 1e-12)) for w in _weights(len(above), block)]
    again = np.concatenate(parts)  # (draws, models x seeds)
    rate = metric.percent and block == 1 and bool((below == 1).all())
    found: dict[str, Drawn] = {}
    for name in models:
        mine = [i for i, (other, _) in enumerate(flat) if other == name]
        right = above[:, mine].mean(1) if rate else None
        found[name] = Drawn(point[mine], again[:, mine].T, -(-len(above) // block), right)
    return found


def _weights(n: int, block: int) -> Any:
    """(some draws, n): how often each row is in a draw."""
    random = np.random.default_rng(0)
    blocks = -(-n // block)
    size = max(1, min(DRAWS, AT_ONCE // n))
    for start in range(0, DRAWS, size):
        count = min(size, DRAWS - start)
        first = random.integers(blocks, size=(count, blocks)) + blocks * np.arange(count)[:, None]
        drawn = np.bincount(first.ravel(), minlength=count * blocks).reshape(count, blocks)
        yield np.repeat(drawn, block, 1)[:, :n].astype(np.float64)


def known(one: Drawn) -> Known:
    """A model's own number."""
    if one.right is None:
        return _known(one.values, _half(one.drawn.mean(0), one.units))
    part = float(one.right.mean())
    return _known(one.values, max(abs(end - part) for end in wilson_interval(part, one.units)))


def apart(one: Drawn, other: Drawn) -> Known:
    """one - other, seed by seed; what has no seeds is the same for all of them."""
    n = max(len(one.values), len(other.values)) if 1 in (len(one.values), len(other.values)) else None
    n = n or min(len(one.values), len(other.values))
    a, b = (np.resize(d.values, n) if len(d.values) == 1 else d.values[:n] for d in (one, other))
    if one.right is None or other.right is None:
        return _known(a - b, _half(one.drawn[:n].mean(0) - other.drawn[:n].mean(0), one.units))
    return _known(a - b, _counted(one.right - other.right))


def _counted(d: Array) -> float:
    """How far the mean of paired differences in -1 .. 1 may be off: as if half a row more were on either side."""
    n, middle = len(d) + 2, float(d.sum()) / (len(d) + 2)
    half = Z_95 * math.sqrt((float((d**2).sum()) + 1) / n - middle**2) / math.sqrt(n)
    return half + abs(float(d.mean()) - middle)


def _half(rows: Array, units: int) -> float:
    end = tail_quantile(units) if units > 1 else 0.0
    low, high = np.quantile(rows, (end, 1 - end))
    return float(high - low) / 2


def _known(values: Array, rows: float) -> Known:
    seeds = mean_interval(values.tolist()).half or 0.0
    return Known(float(values.mean()), math.hypot(rows, seeds), values.tolist())
