"""Resample the rows of a split, and turn the metrics of the resamples into a 95% interval.

Rows are drawn with replacement (Efron 1979, Ann. Statist. 7). Windows whose forecasts overlap are drawn in blocks of
neighbours (Kuensch 1989, Ann. Statist. 17). A block is one and a half times as long as the overlap: blocks as long as
the overlap share steps with the next, and 95% intervals contained the true value in 84 to 91% of simulated series;
with these, in 91 to 95% (research/quality/coverage.py).

Ten blocks or more: quantiles of the resampled metric (Hesterberg 2015, Am. Stat. 69, arXiv 1411.5279). Fewer: no
resample lies outside the lowest and the highest block, so quantiles are too narrow, and the interval is the t-interval
with the standard deviation of the resamples. One block has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from seqloom.core.plurals import count
from seqloom.lab.stats.intervals import t_quantile, tail_quantile

Array = np.ndarray[Any, Any]
FEWEST_BLOCKS_FOR_QUANTILES = 10
WEIGHTS_IN_MEMORY = 4_000_000


def find_block_length(overlap: int) -> int:
    """Return how many neighbouring rows are drawn together if each overlaps the next `overlap - 1`."""
    return 1 if overlap == 1 else -(-3 * overlap // 2)


def count_blocks(rows: int, overlap: int) -> int:
    """Return the number of blocks into which the rows are divided, at least 1."""
    return max(1, rows // find_block_length(overlap))


def draw_weights(rows: int, overlap: int, resamples: int, seed: int = 0) -> Iterator[Array]:
    """Yield (resamples, rows) arrays, `resamples` in all: how often each row occurs in a resample."""
    random = np.random.default_rng(seed)
    blocks = count_blocks(rows, overlap)
    sizes = np.diff(np.arange(blocks + 1) * rows // blocks)
    most = max(1, min(resamples, WEIGHTS_IN_MEMORY // rows))
    for start in range(0, resamples, most):
        some = min(most, resamples - start)
        first = random.integers(blocks, size=(some, blocks)) + blocks * np.arange(some)[:, None]
        counts = np.bincount(first.ravel(), minlength=some * blocks).reshape(some, blocks)
        yield np.repeat(counts, sizes, 1).astype(np.float64)


def find_interval(value: float, resampled: Array, blocks: int) -> tuple[float, float]:
    """Return the ends of the 95% interval of a metric, infinite if it is unknown.

    Args:
        value: The metric of the rows.
        resampled: The metric of each resample; NaN where it has none, such as a recall without rows of the class.
        blocks: Number of blocks in a resample.
    """
    known = resampled[~np.isnan(resampled)]
    if blocks < 2 or not len(known):
        return -math.inf, math.inf
    if blocks >= FEWEST_BLOCKS_FOR_QUANTILES:
        end = tail_quantile(blocks)
        low, high = np.quantile(known, (end, 1 - end))
        return float(low), float(high)
    half = t_quantile(blocks - 1) * math.sqrt(blocks / (blocks - 1)) * float(known.std())
    return value - half, value + half


def explain_few_rows(rows: int, overlap: int, example: str = "row") -> str:
    """Explain in a sentence what few rows mean for the intervals; "" if there are enough.

    Args:
        overlap: Number of neighbouring rows that share steps of a series.
        example: What a row is called.
    """
    blocks, fewest = count_blocks(rows, overlap), 2 * find_block_length(overlap)
    why = f"the forecasts of neighbouring {example}s overlap, so " if overlap > 1 else ""
    if blocks < 2:
        verb = "is" if rows == 1 else "are"
        return (
            f"There are no 95% intervals: {why}they need {count(fewest, example)} or more, and there {verb} {rows:,}."
        )
    if blocks >= FEWEST_BLOCKS_FOR_QUANTILES:
        return ""
    what = f"there are {rows} {example}s"
    if overlap > 1:
        what = f"{count(rows, example)} count as {blocks} independent ones"
    degrees = count(blocks - 1, "degree of freedom", "degrees of freedom")
    return f"Intervals are wide: {why}{what} (t-distribution, {degrees})."
