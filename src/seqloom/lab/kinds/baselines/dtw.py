"""The class of the nearest training series under dynamic time warping (DTW).

    D[i, j] = |a_i - b_j|^2 + min(D[i-1, j], D[i, j-1], D[i-1, j-1])        if |i - j| <= w, else infinity

The distance of a and b is D at their last steps. The window w is the smallest that has the best accuracy on training
series left out one at a time, as in the UCR archive. Series of different lengths widen it by the difference.

Sakoe & Chiba 1978, Dynamic programming algorithm optimization for spoken word recognition; Dau et al. 2019, The UCR
time series archive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.baselines.rocket import UNSEEN_SCORE, choose_scale, read_series
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.stats.metrics import Array

WINDOWS = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 1.0)  # shares of the longest series
MOST_SERIES = 500  # training series; choosing a window takes their square
MOST_CELLS = 5e8  # cells of all tables D, including those that choose w; about 10 s on one core
CHUNK = 1 << 20  # values that are computed together


class NearestSeries(BaselineModule):
    """Classify by the nearest training series: the score of a class is minus its distance, times a scale.

    Args:
        x: (N, T, D) training series.
        lengths: (N,) their lengths.
        y: (N,) their classes.
        classes: number of classes.
        window: maximum number of steps by which aligned steps may differ.
        scale: factor of the distances.
    """

    x: Tensor
    lengths: Tensor
    y: Tensor
    classes: int
    window: int
    scale: float
    fields = ("classes", "window", "scale")
    fitted = ("x",)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        a, a_lengths, b, b_lengths, y = (t.cpu().numpy() for t in (x, lengths, self.x, self.lengths, self.y))
        nearest = _nearest_of_class(measure_distances(a, a_lengths, b, b_lengths, self.window), y, self.classes)
        return torch.from_numpy(_score(nearest, self.scale)).float().to(x.device)


def can_fit_dtw(task: Task) -> bool:
    """Return whether choosing a window and predicting all held-out series takes seconds."""
    sizes = [task.splits[name].size for name in ("train", "valid", "test")]
    train, held_out = sizes[0] or 0, sum(n or 0 for n in sizes[1:])
    if None in sizes or train > MOST_SERIES or train * held_out > MOST_CELLS:
        return False
    lengths = torch.cat([batch.lengths for batch in iterate_split(task, "train")])
    T, spread = int(lengths.max()), int(lengths.max() - lengths.min())
    cells = [T * min(2 * (w + spread) + 1, T) for w in _list_windows(T)]
    return train * (train * sum(cells) + held_out * cells[-1]) <= MOST_CELLS


def _list_windows(steps: int) -> list[int]:
    return sorted({round(share * steps) for share in WINDOWS})


def fit_dtw(task: Task, splits: Sequence[str] = ("train",)) -> ForTask:
    """Store the series of `splits`; choose the window and the scale of the distances on them."""
    x, lengths, y = read_series(task, splits)
    best, window, distances = -1, 0, np.empty((0, 0))
    for w in _list_windows(x.shape[1]):
        d = measure_distances(x, lengths, x, lengths, w)
        np.fill_diagonal(d, np.inf)
        right = int((y[d.argmin(1)] == y).sum())
        if right > best:
            best, window, distances = right, w, d
    nearest = _nearest_of_class(distances, y, task.target.size)
    unit = 1 / max(1e-12, float(np.median(nearest[np.isfinite(nearest)])))
    scale = unit * choose_scale(_score(nearest, unit), y)
    series = {name: torch.from_numpy(array) for name, array in (("x", x), ("lengths", lengths), ("y", y))}
    return wrap(task, NearestSeries(**series, classes=task.target.size, window=window, scale=scale))


def _score(nearest: Array, scale: float) -> Array:
    """Return -scale times the distances (N, K); a class without series has the lowest score."""
    scores = np.where(np.isfinite(nearest), -scale * nearest, np.inf)
    lowest = np.minimum(scores.min(1, keepdims=True), 0) + UNSEEN_SCORE
    return np.where(np.isfinite(scores), scores, lowest)


def _nearest_of_class(distances: Array, y: Array, classes: int) -> Array:
    """Return (N, K): the least distance to a series of each class."""
    columns = [distances[:, y == k].min(1, initial=np.inf) for k in range(classes)]
    return np.stack(columns, 1)


def measure_distances(a: Array, a_lengths: Array, b: Array, b_lengths: Array, window: int) -> Array:
    """Return the DTW distance of every pair, (N, M).

    Args:
        a: (N, S, D) series, padded at their ends.
        a_lengths: (N,) their lengths.
        b: (M, T, D) series.
        b_lengths: (M,) their lengths.
        window: maximum number of steps by which i and j may differ, besides the difference of the lengths.
    """
    cells = a.shape[1] * b.shape[1] if b.shape[2] > 1 else a.shape[1]
    rows = max(1, CHUNK // (len(b) * cells))
    parts = [slice(start, start + rows) for start in range(0, len(a), rows)]
    return np.concatenate([_fill_tables(a[s], a_lengths[s], b, b_lengths, window) for s in parts])


def _fill_tables(a: Array, a_lengths: Array, b: Array, b_lengths: Array, window: int) -> Array:
    """Fill the tables of all pairs, one antidiagonal i + j = k at a time; cell i of a diagonal is at i + 1."""
    S, T = int(a_lengths.max()), int(b_lengths.max())
    windows = window + np.abs(a_lengths[:, None] - b_lengths)  # (N, M)
    widest, same = int(windows.max()), bool((windows == window).all())
    ends = a_lengths[:, None] + b_lengths - 2  # the diagonal that holds a pair's last cell
    out = np.empty(windows.shape, np.float32)
    before, now = (np.full((*windows.shape, S + 2), np.inf, np.float32) for _ in range(2))
    read_costs = _make_cost_reader(a[:, :S], b[:, :T])
    for k in range(S + T - 1):
        low, high = max(0, k - T + 1, -((widest - k) // 2)), min(S, k + 1, (k + widest) // 2 + 1)  # rows i of the cells
        cells = read_costs(k, low, high)
        if k:
            paths = np.minimum(now[..., low:high], now[..., low + 1 : high + 1])
            cells = cells + np.minimum(paths, before[..., low:high])
        if not same:
            cells = np.where(np.abs(2 * np.arange(low, high) - k) <= windows[..., None], cells, np.inf)
        before, now = now, before
        now[..., low] = now[..., high + 1] = np.inf  # the neighbours of these cells that later diagonals read
        now[..., low + 1 : high + 1] = cells
        n, m = np.nonzero(ends == k)
        out[n, m] = now[n, m, a_lengths[n]]
    return out


def _make_cost_reader(a: Array, b: Array) -> Callable[[int, int, int], Array]:
    """Return a function of (k, low, high): |a_i - b_j|^2 for j = k - i and i = low to high - 1, (N, M, high - low)."""
    T = b.shape[1]
    if a.shape[2] > 1:  # all of them by a matrix product
        products = np.einsum("nid,mjd->nmij", a, b, optimize=True)
        table = np.square(a).sum(2)[:, None, :, None] + np.square(b).sum(2)[None, :, None] - 2 * products
        flat = np.maximum(table, 0).reshape(len(a), len(b), -1)
        return lambda k, low, high: flat[..., low * (T - 1) + k :: max(1, T - 1)][..., : high - low]
    a, backwards = a[:, None, :, 0], b[None, :, ::-1, 0]
    return lambda k, low, high: np.square(a[..., low:high] - backwards[..., T - 1 - k + low : T - 1 - k + high])
