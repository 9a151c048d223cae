"""Gradient boosting on lags: one ensemble of regression trees for all steps of a forecast.

The trees predict y_s - l, the distance of step s from the level l of the window's end. They are scikit-learn's
(HistGradientBoostingRegressor, after LightGBM, Ke et al. 2017), stored as plain arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.data.task import Features, Task, Values
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.kinds.forecast import order_features

Array = np.ndarray[Any, Any]
MOST_ROWS, MOST_VALID = 30_000, 8_000  # rows of training and validation; a row is one step of a window
TREES, DEPTH, LEAVES, RATE = 120, 6, 31, 0.1
RECENT = 3  # last values that are features
LEVEL = 7  # last values whose mean is the level, if the data have no season
ROWS_AT_ONCE = 8_192  # rows that are predicted at once, to bound memory


class LagTrees(BaselineModule):
    """Forecast from lags: the past (B, T, D), with the K targets first, -> the future (B, S, K).

    Args:
        feature: (trees, nodes) the feature that a node compares.
        threshold: (trees, nodes) a row goes left if its feature is at most this.
        left: (trees, nodes) the next node; a leaf is its own.
        right: (trees, nodes).
        value: (trees, nodes) of a leaf.
        start: () the prediction before the first tree.
        sizes: Steps S and targets K of the forecast, and the number of features that are known ahead.
        seasons: Seasons in steps.
    """

    feature: Tensor
    threshold: Tensor
    left: Tensor
    right: Tensor
    value: Tensor
    start: Tensor
    sizes: list[int]
    seasons: list[int]
    fields = ("sizes", "seasons")

    def __init__(self, **values: Any) -> None:  # noqa: ANN401  # see above
        super().__init__(**values)
        self.size = int((self.left == torch.arange(self.left.shape[1])).sum())  # leaves

    def forward(self, x: Tensor, lengths: Tensor, future: Tensor | None = None) -> Tensor:
        S, K, _ = self.sizes
        windows = max(1, ROWS_AT_ONCE // (S * K))
        parts = [slice(at, at + windows) for at in range(0, len(x), windows)]
        known = [None if future is None else future[part] for part in parts]
        return torch.cat([self.forecast(x[p], lengths[p], f) for p, f in zip(parts, known, strict=True)])

    def forecast(self, x: Tensor, lengths: Tensor, future: Tensor | None = None) -> Tensor:
        """Return the forecasts (B, S, K) of all windows at once."""
        steps = torch.arange(self.sizes[0], device=x.device)
        rows, level = make_rows(x, lengths, future, steps, self)
        return (level + self.predict_rows(rows.flatten(0, 2)).view(rows.shape[:3])).to(x.dtype)

    def predict_rows(self, rows: Tensor) -> Tensor:
        """Return the sum of all trees for rows (N, features)."""
        rows = rows.double()
        trees, nodes = self.feature.shape
        first = nodes * torch.arange(trees, device=rows.device)  # offset of each tree in flat arrays
        feature, threshold = self.feature.flatten().long(), self.threshold.flatten()
        next_node = (torch.stack([self.left, self.right], -1) + first.view(-1, 1, 1)).flatten()
        node = first.expand(rows.shape[0], trees)
        for _ in range(DEPTH):
            goes_right = rows.gather(1, feature[node]) > threshold[node]
            node = next_node[2 * node + goes_right]
        return self.value.flatten()[node].sum(1) + self.start


def make_rows(
    x: Tensor,
    lengths: Tensor,
    future: Tensor | None,
    steps: Tensor,
    sizes: Any,  # noqa: ANN401
) -> tuple[Tensor, Tensor]:
    """Return the features of some steps of windows, (B, S', K, features), and the levels (B, 1, K).

    Args:
        x: (B, T, D), the K targets first and the known features last.
        lengths: (B,).
        future: (B, S, F) the known features of all steps.
        steps: (S',) the steps to describe, counted from 0.
        sizes: Has `sizes` and `seasons`, as `LagTrees` does.
    """
    (_, K, F), seasons = sizes.sizes, sizes.seasons
    B, n = x.shape[0], len(steps)
    z, end = x[..., :K], lengths.view(B, 1)
    span = seasons[0] if seasons else LEVEL
    # Thresholds are values of training rows, so a level must not depend on the order of a sum.
    ends = _take(z, end - 1 - torch.arange(span, device=x.device))
    level = ends.double().mean(1, keepdim=True).to(x.dtype)  # (B, 1, K)
    recent = _take(z, end - 1 - torch.arange(RECENT, device=x.device)) - level
    columns = [recent[:, None, r].expand(B, n, K) for r in range(RECENT)]
    for m in seasons:
        cycle = end + steps - m * (steps // m + 1)  # (B, S') the same phase in the last season
        columns += [_take(z, at) - level for at in (cycle, cycle - m)]
        if F:
            columns += list(_take(x[..., -F:], cycle).unsqueeze(2).expand(B, n, K, F).unbind(-1))
    columns += [level.expand(B, n, K), steps.to(x.dtype).view(1, n, 1).expand(B, n, K)]
    if K > 1:
        columns.append(torch.arange(K, device=x.device, dtype=x.dtype).expand(B, n, K))
    columns += list(_take(x[..., K : x.shape[2] - F], end - 1).unsqueeze(2).expand(B, n, K, -1).unbind(-1))
    if F:
        assert future is not None
        columns += list(future[:, steps].unsqueeze(2).expand(B, n, K, F).unbind(-1))
    return torch.stack(columns, -1), level


def _take(x: Tensor, at: Tensor) -> Tensor:
    """Return the values (B, N, D) of x (B, T, D) at steps (B, N); steps before the first one give the first."""
    return x.gather(1, at.clamp(min=0).unsqueeze(-1).expand(*at.shape, x.shape[2]))


class _Sizes:
    def __init__(self, task: Task) -> None:
        assert isinstance(task.target, Values) and isinstance(task.input, Features)
        calendar = getattr(task.encoding, "times", None)
        self.sizes = [task.target.steps, task.target.size, len(task.input.known)]
        self.seasons = [m for m in getattr(calendar, "seasons", ()) if m <= task.lookback]


def fit_boosting(task: Task) -> ForTask:
    """Fit trees to some steps of the training windows; the validation windows choose how many trees."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    sizes = _Sizes(task)
    X, y = _collect(task, "train", sizes, MOST_ROWS)
    trees = HistGradientBoostingRegressor(
        max_iter=TREES, max_depth=DEPTH, max_leaf_nodes=LEAVES, learning_rate=RATE, early_stopping=False, random_state=0
    ).fit(X, y)
    V, v = _collect(task, "valid", sizes, MOST_VALID)
    errors = [float(np.square(p - v).mean()) for p in trees.staged_predict(V)]
    best = int(np.argmin(errors)) + 1
    return wrap(task, LagTrees(**_to_arrays(trees, best), sizes=sizes.sizes, seasons=sizes.seasons))


def _collect(task: Task, split: str, sizes: _Sizes, most: int) -> tuple[Array, Array]:
    """Return features (N, D) and targets (N,) of about `most` random steps of a split."""
    S, K, _ = sizes.sizes
    order, windows = order_features(task), task.splits[split].size or most
    random = np.random.default_rng(0)
    share = max(1, min(S, most // (K * windows)))  # steps of each window
    chosen = min(1.0, most / (K * windows * share))  # share of the windows
    rows, targets = [], []
    for batch in iterate_split(task, split):
        keep = torch.from_numpy(np.flatnonzero(random.random(len(batch)) < chosen))
        if not len(keep):
            continue
        steps = torch.from_numpy(np.sort(random.permutation(S)[:share]))
        x, future = batch.x[keep][..., order], None if batch.future is None else batch.future[keep]
        features, level = make_rows(x, batch.lengths[keep], future, steps, sizes)
        rows.append(features.flatten(0, 2))
        targets.append((get_targets(batch)[keep][:, steps] - level).flatten())
    X, y = torch.cat(rows).double().numpy(), torch.cat(targets).double().numpy()
    known = np.isfinite(y)
    return X[known], y[known]


def _to_arrays(trees: Any, count: int) -> dict[str, Tensor]:  # noqa: ANN401  # scikit-learn's
    """Return the first trees as padded arrays."""
    nodes = [one[0].nodes for one in trees._predictors[:count]]
    most = max(map(len, nodes))
    shape = (len(nodes), most)
    itself = np.broadcast_to(np.arange(most), shape)
    feature, left, right = np.zeros(shape, np.int32), itself.astype(np.int32), itself.astype(np.int32)
    threshold, value = np.full(shape, np.inf), np.zeros(shape)
    for i, node in enumerate(nodes):
        inner = np.flatnonzero(node["is_leaf"] == 0)
        feature[i, inner], threshold[i, inner] = node["feature_idx"][inner], node["num_threshold"][inner]
        left[i, inner], right[i, inner] = node["left"][inner], node["right"][inner]
        value[i, : len(node)] = node["value"]
    arrays = {"feature": feature, "threshold": threshold, "left": left, "right": right, "value": value}
    start = np.asarray(trees._baseline_prediction, dtype=np.float64).reshape(())
    return {name: torch.from_numpy(array) for name, array in (arrays | {"start": start}).items()}
