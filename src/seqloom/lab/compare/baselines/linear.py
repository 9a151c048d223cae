"""Linear baselines of scikit-learn over n-grams of a text, or over the values and a summary of a series."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.compare.baselines.counts import BaselineModule
from seqloom.lab.compare.data import iterate_split
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.stats.metrics import Array
from seqloom.lab.training.for_task import ForClassify, ForRegress, ForTask

if TYPE_CHECKING:  # both take long to import
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator

Rows = tuple[Array, Array]  # x (B, T) or (B, T, D), lengths (B,)
WORD_ORDERS, CHARACTER_ORDERS = (1, 2), (1, 2, 3, 4)  # lengths of n-grams
MOST_NGRAMS = 500_000
RESAMPLED_POINTS = 32  # values of each feature, if the series differ in length
MOST_VALUES = 4_000  # series of equal length with at most so many values are used as they are
SERIES_C, TEXT_C = (0.01, 0.1, 1.0), (1.0, 10.0)  # inverse regularisation strengths of scikit-learn
RIDGE_C = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # 1 / alpha
SOLVER_ITERATIONS = 100


class Ngrams:
    """TF-IDF of n-grams: of one or two words, or of one to four characters."""

    def __init__(self, space: Tokens, orders: tuple[int, ...] = ()) -> None:
        self.base = space.size
        self.orders = orders or (CHARACTER_ORDERS if space.unit in ("characters", "bytes") else WORD_ORDERS)

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Choose the n-grams and their weights; return the (N, columns) sparse matrix of the rows."""
        from sklearn.feature_extraction.text import TfidfTransformer

        pieces = [self._codes(*part) for part in rows]
        row = np.concatenate([r + start for (r, _), start in zip(pieces, _starts(pieces), strict=True)])
        code = np.concatenate([c for _, c in pieces])
        self.known, inverse, counts = np.unique(code, return_inverse=True, return_counts=True)
        self.n = sum(int(r[-1]) + 1 for r, _ in pieces)
        frequent = np.argsort(-counts, kind="stable")[:MOST_NGRAMS]
        frequent = np.sort(frequent[counts[frequent] > 1]) if len(counts) > self.base else np.arange(len(counts))
        column = np.full(len(self.known), -1)
        column[frequent] = np.arange(len(frequent))
        self.known = self.known[frequent]
        self.weighted = TfidfTransformer(sublinear_tf=True)
        return self.weighted.fit_transform(self._matrix(row, column[inverse], self.n))

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        row, code = self._codes(x, lengths)
        at = np.searchsorted(self.known, code).clip(max=len(self.known) - 1)
        return self.weighted.transform(self._matrix(row, np.where(self.known[at] == code, at, -1), len(x)))

    def _codes(self, x: Array, lengths: Array) -> Rows:
        """Return the row and the code of each n-gram; a last entry of code -1 marks the last row."""
        rows, codes = [], []
        x = x.astype(np.int64)
        for n in self.orders:
            width = x.shape[1] - n + 1
            if width < 1:
                continue
            code = np.zeros((len(x), width), dtype=np.int64)
            for k in range(n):
                code = code * self.base + x[:, k : k + width]
            there = np.arange(width) <= (lengths - n)[:, None]
            rows.append(np.nonzero(there)[0])
            codes.append(code[there] + n * self.base ** max(self.orders))
        return np.concatenate([*rows, [len(x) - 1]]), np.concatenate([*codes, [-1]])

    def _matrix(self, row: Array, column: Array, n: int) -> csr_matrix:
        from scipy.sparse import csr_matrix

        keep = column >= 0
        shape = (n, max(1, len(self.known)))
        return csr_matrix((np.ones(int(keep.sum())), (row[keep], column[keep])), shape)


def _starts(pieces: list[Rows]) -> list[int]:
    return [0, *np.cumsum([int(r[-1]) + 1 for r, _ in pieces])[:-1].tolist()]


class SeriesFeatures:
    """Mean, spread, extremes, first, last and roughness of each feature, and the values themselves."""

    def fit(self, rows: Iterable[Rows]) -> Array:
        """Fit the scaling; return the (N, columns) features of the rows."""
        from sklearn.preprocessing import StandardScaler

        parts = list(rows)
        lengths = np.concatenate([n for _, n in parts])
        T, D = int(lengths.max()), parts[0][0].shape[2]
        same = bool((lengths == T).all()) and T * D <= MOST_VALUES
        self.points = T if same else max(1, min(RESAMPLED_POINTS, MOST_VALUES // D))
        self.scale = StandardScaler()
        return self.scale.fit_transform(np.concatenate([self._unscaled(*part) for part in parts]))

    def __call__(self, x: Array, lengths: Array) -> Array:
        return self.scale.transform(self._unscaled(x, lengths))

    def _unscaled(self, x: Array, lengths: Array) -> Array:
        return np.stack([self._describe(row[: max(1, n)]) for row, n in zip(x, lengths, strict=True)])

    def _describe(self, x: Array) -> Array:
        """Map (T, D) to features; a series of another length is interpolated at evenly spaced points."""
        rough = np.abs(np.diff(x, axis=0)).mean(0) if len(x) > 1 else np.zeros(x.shape[1])
        summary = [x.mean(0), x.std(0), x.min(0), x.max(0), x[0], x[-1], rough]
        at = np.linspace(0, len(x) - 1, self.points)
        low = np.floor(at).astype(int)
        high, share = np.minimum(low + 1, len(x) - 1), (at - low)[:, None]
        return np.concatenate([*summary, ((1 - share) * x[low] + share * x[high]).ravel()])


class Linear(BaselineModule):
    """W f(x) + b for features f."""

    def __init__(
        self, features: Ngrams | SeriesFeatures, fitted: BaseEstimator, classes: Array | None, outputs: int
    ) -> None:
        parts = getattr(fitted, "estimators_", [fitted])
        super().__init__(sum(part.coef_.size + np.size(part.intercept_) for part in parts))
        self.features, self.fitted, self.classes, self.outputs = features, fitted, classes, outputs

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        f = self.features(x.numpy(), lengths.numpy())
        if self.classes is None:
            return torch.from_numpy(np.asarray(self.fitted.predict(f)).reshape(len(x), -1)).float()
        scores = np.full((len(x), self.outputs), -30.0)  # for a class that training lacks
        scores[:, self.classes] = np.log(self.fitted.predict_proba(f).clip(min=1e-13))
        return torch.from_numpy(scores).float()


def fit_logistic(task: Task) -> ForTask:
    """Fit a logistic regression; for text one against the rest, which is much faster on sparse features."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    features, f, y = _fit_features(task)
    text = isinstance(task.input, Tokens)

    def fit(c: float) -> ForTask:
        if text:
            model = OneVsRestClassifier(LogisticRegression(C=c, solver="liblinear", dual=True)).fit(f, y)
        else:
            model = LogisticRegression(C=c, max_iter=SOLVER_ITERATIONS).fit(f, y)
        return ForClassify(Linear(features, model, model.classes_, task.target.size))

    return _choose(fit, TEXT_C if text else SERIES_C, task)


def fit_ridge(task: Task) -> ForTask:
    from sklearn.linear_model import Ridge

    features, f, y = _fit_features(task)
    known = ~np.isnan(y).any(1)
    return _choose(
        lambda c: ForRegress(Linear(features, Ridge(alpha=1 / c).fit(f[known], y[known]), None, task.target.size)),
        RIDGE_C,
        task,
    )


def _fit_features(task: Task) -> tuple[Any, Any, Array]:
    """Return the fitted feature map, and the features and targets of the training split."""
    rows: list[Rows] = []
    ys = []
    for batch in iterate_split(task, "train"):
        assert batch.y is not None
        keep = batch.y >= 0 if task.kind == "classify" else torch.ones(len(batch), dtype=torch.bool)
        rows.append((batch.x[keep].numpy(), batch.lengths[keep].numpy()))
        ys.append(batch.y[keep].numpy())
    features: Any = Ngrams(task.input) if isinstance(task.input, Tokens) else SeriesFeatures()
    return features, features.fit(rows), np.concatenate(ys)


def _choose(fit: Callable[[float], ForTask], strengths: tuple[float, ...], task: Task) -> ForTask:
    """Fit with each strength and return the best on the validation rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is not needed: validation chooses
        models = [fit(c) for c in strengths]
    return min(models, key=lambda model: _validate(model, task))


@torch.no_grad()
def _validate(model: ForTask, task: Task) -> tuple[float, float]:
    """Return the number of wrong validation rows, if classes are predicted, and the loss."""
    wrong = nats = 0.0
    for batch in iterate_split(task, "valid"):
        scores = model.scores(batch)[0]
        nats += float(model.row_losses(scores, batch).sum())
        if task.kind == "classify":
            wrong += float((scores.argmax(-1) != batch.y).sum())
    return wrong, nats
