"""Linear baselines of scikit-learn over the features of a row."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.files.sealed import JSON
from seqloom.lab.kinds.baselines.features import (
    FeatureMap,
    Ngrams,
    Overlap,
    Rows,
    SeriesFeatures,
    WordsAndLetters,
    join_sparse,
    select,
)
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.stats.class_metrics import macro_f1_of_labels
from seqloom.lab.stats.metrics import Array

SERIES_C, TEXT_C = (0.01, 0.1, 1.0), (1.0, 10.0)  # inverse regularisation strengths of scikit-learn
LABELS_C = (1.0, 10.0, 100.0)  # rare labels need less regularisation to be predicted at all
RIDGE_C = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # 1 / alpha
SOLVER_ITERATIONS = 100
ABSENT_SCORE = -30.0  # score of a class that does not occur in training


class Linear(BaselineModule):
    """W f(x) + b for features f, which `link` turns into scores.

    Args:
        features: the fitted feature map.
        W: (K, columns) float32; for two classes (1, columns) gives the second one's log odds.
        b: (K,) float32.
        link: "identity" for numbers, "softmax" for classes, "one against the rest" for independent classes.
        classes: the ids of the K classes among all; None for numbers.
        outputs: number of all classes or numbers.
        attributes: number of attributes, the last features of x; their columns are the last ones of W.
    """

    W: Tensor
    b: Tensor
    fitted = ("W", "b")
    reads_attributes = True

    def __init__(
        self,
        features: FeatureMap,
        W: Tensor,
        b: Tensor,
        link: str,
        classes: list[int] | None,
        outputs: int,
        attributes: int = 0,
    ) -> None:
        super().__init__(W=W, b=b)
        self.features, self.link, self.classes, self.outputs = features, link, classes, outputs
        self.attributes = attributes

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        f = _extract(self.features, x.cpu().numpy(), lengths.cpu().numpy(), self.attributes)
        z = torch.from_numpy(np.asarray(f @ self.W.cpu().numpy().T.astype(np.float64))) + self.b.cpu()
        return self.link_scores(z).to(x.device)

    def link_scores(self, z: Tensor) -> Tensor:
        """Turn z = W f + b (B, K) into scores (B, outputs)."""
        if self.classes is None:
            return z.float()
        if len(self.b) == 1:
            z = torch.cat([torch.zeros_like(z), z], 1)
        if self.link == "one against the rest" and len(self.b) > 1:
            p = z.sigmoid()
            p = p / p.sum(1, keepdim=True)
        else:
            p = z.softmax(1)
        log_p = p.clamp(min=1e-13).log()
        scores = log_p.new_full((z.shape[0], self.outputs), ABSENT_SCORE)
        return scores.index_copy(1, torch.tensor(self.classes, device=z.device), log_p).float()

    def arrays(self) -> dict[str, Tensor]:
        return {"W": self.W, "b": self.b, **{f"features.{k}": v for k, v in self.features.arrays().items()}}

    def settings(self) -> dict[str, JSON]:
        classes: JSON = None if self.classes is None else list(self.classes)
        features: JSON = {"name": self.features.key, **self.features.settings()}
        common: dict[str, JSON] = {"outputs": self.outputs, "attributes": self.attributes, "features": features}
        return {"link": self.link, "classes": classes, **common}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        options = dict(settings)
        described = dict(options.pop("features"))
        features = FeatureMap.by_key[described.pop("name")].build(select(arrays, "features."), described)
        W, b = arrays["W"], arrays["b"]
        columns = None
        if isinstance(features, SeriesFeatures):
            columns = len(features.mean) + int(options.get("attributes", 0))
        are_numbers = W.dtype == b.dtype == torch.float32
        if not are_numbers or W.dim() != 2 or b.shape != W.shape[:1] or W.shape[1] != (columns or W.shape[1]):
            raise UserError(
                f"W and b of a linear model do not fit: they have shapes {tuple(W.shape)}, {tuple(b.shape)} "
                f"and types {W.dtype}, {b.dtype}"
            )
        classes, outputs = options["classes"], options["outputs"]
        if classes is not None and (
            len(classes) != max(2, len(b)) or not all(type(k) is int and 0 <= k < outputs for k in classes)
        ):
            raise UserError(f"the classes of a linear model must be {max(2, len(b))} numbers below {outputs}")
        return cls(features, W, b, **options)


def _float32(values: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


def fit_logistic(task: Task, weights: Sequence[float] = (), features: FeatureMap | None = None) -> ForTask:
    """Fit a logistic regression; for text one against the rest, which is much faster on sparse features.

    Args:
        weights: a weight for each class, or none.
        features: what is computed from a row; by default the n-grams of a text, or the values of a series.
    """
    from sklearn.linear_model import LogisticRegression

    features, f, y = _fit_features(task, features)
    text = isinstance(task.input, Tokens)
    rows = np.asarray(weights)[y] if len(weights) else None
    classes = np.unique(y)

    def fit(c: float) -> ForTask:
        if text:
            parts = [
                LogisticRegression(C=c, solver="liblinear", dual=True).fit(f, y == k, rows)
                for k in (classes[1:] if len(classes) == 2 else classes)
            ]
            link = "one against the rest"
        else:
            parts, link = [LogisticRegression(C=c, max_iter=SOLVER_ITERATIONS).fit(f, y, rows)], "softmax"
        W = _float32(np.concatenate([part.coef_ for part in parts]))
        b = _float32(np.concatenate([part.intercept_ for part in parts]))
        return wrap(task, Linear(features, W, b, link, classes.tolist(), *_sizes(task)))

    return _choose(fit, TEXT_C if text else SERIES_C, task, weights)


def fit_logistic_with_letters(task: Task, weights: Sequence[float] = ()) -> ForTask:
    """Fit a logistic regression to n-grams of words and of their characters."""
    return fit_logistic(task, weights, WordsAndLetters.of(task))


def fit_overlap(task: Task, weights: Sequence[float] = ()) -> ForTask:
    """Fit a logistic regression to what two texts have in common."""
    return fit_logistic(task, weights, Overlap())


def fit_labels(task: Task, features: FeatureMap | None = None) -> ForTask:
    """Fit a logistic regression for each label of a multi-label task, independent of the others."""
    from sklearn.linear_model import LogisticRegression

    features, f, y = _fit_features(task, features)
    text = isinstance(task.input, Tokens)
    options: dict[str, Any] = {"solver": "liblinear", "dual": True} if text else {"max_iter": SOLVER_ITERATIONS}
    columns = f.shape[1]

    def fit_one(c: float, is_there: Array) -> tuple[Array, float]:
        if is_there.all() or not is_there.any():  # the sample of rows may lack one of the two values
            return np.zeros(columns), -ABSENT_SCORE if is_there.all() else ABSENT_SCORE
        one = LogisticRegression(C=c, **options).fit(f, is_there)
        return one.coef_[0], float(one.intercept_[0])

    def fit(c: float) -> ForTask:
        parts = [fit_one(c, y[:, k] > 0) for k in range(task.target.size)]
        W, b = _float32(np.stack([w for w, _ in parts])), _float32(np.array([bias for _, bias in parts]))
        return wrap(task, Linear(features, W, b, "identity", None, *_sizes(task)))

    return _choose(fit, LABELS_C if text else SERIES_C, task)


def fit_ridge(task: Task, features: FeatureMap | None = None) -> ForTask:
    """Fit a ridge regression to the features; see `fit_logistic`."""
    from sklearn.linear_model import Ridge

    features, f, y = _fit_features(task, features)
    known = ~np.isnan(y).any(1)

    def fit(c: float) -> ForTask:
        model = Ridge(alpha=1 / c).fit(f[known], y[known])
        W, b = _float32(model.coef_.reshape(task.target.size, -1)), _float32(np.atleast_1d(model.intercept_))
        return wrap(task, Linear(features, W, b, "identity", None, *_sizes(task)))

    return _choose(fit, RIDGE_C, task)


def _fit_features(task: Task, features: FeatureMap | None) -> tuple[Any, Any, Array]:
    """Return the fitted feature map, and the features and targets of the training split."""
    rows: list[Rows] = []
    ys, attributes = [], []
    for batch in iterate_split(task, "train"):
        keep = get_targets(batch) >= 0 if task.target.as_target == "class" else torch.ones(len(batch), dtype=torch.bool)
        rows.append((batch.x[keep].numpy(), batch.lengths[keep].numpy()))
        ys.append(get_targets(batch)[keep].numpy())
        if batch.attributes is not None:
            attributes.append(batch.attributes[keep].numpy())
    if features is None:
        features = Ngrams.of(task.input) if isinstance(task.input, Tokens) else SeriesFeatures()
    f = features.fit(rows)
    return features, _join(f, np.concatenate(attributes)) if attributes else f, np.concatenate(ys)


def _sizes(task: Task) -> tuple[int, int]:
    """Return the number of outputs and of attributes."""
    return task.target.size, len(task.input.attributes)


def _extract(features: Any, x: Array, lengths: Array, n: int) -> Any:  # noqa: ANN401  # sparse or dense
    """Compute the features of x (B, T) or (B, T, D), or, with n attributes, of x (B, T, 1 + n) or (B, T, D + n)."""
    if not n:
        return features(x, lengths)
    inner = x[..., :-n] if isinstance(features, SeriesFeatures) else x[..., 0].astype(np.int64)
    return _join(features(inner, lengths), x[:, 0, -n:])


def _join(features: Any, attributes: Array) -> Any:  # noqa: ANN401  # sparse or dense
    """Append attributes (N, A) to features (N, columns)."""
    from scipy.sparse import csr_matrix, issparse

    if issparse(features):
        return join_sparse([features, csr_matrix(attributes)])
    return np.concatenate([features, attributes], 1)


def _choose(
    fit: Callable[[float], ForTask], strengths: tuple[float, ...], task: Task, weights: Sequence[float] = ()
) -> ForTask:
    """Fit with each strength and return the best on the validation rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is not needed: validation chooses
        models = [fit(c) for c in strengths]
    return min(models, key=lambda model: _validate(model, task, weights))


@torch.no_grad()
def _validate(model: ForTask, task: Task, weights: Sequence[float]) -> tuple[float, float]:
    """Return the number of wrong validation rows, if classes are predicted, and the loss; both weighted by class.

    Of several labels, the first number is the negative macro F1.
    """
    wrong = nats = 0.0
    sets: list[tuple[Array, Array]] = []
    by_class = torch.tensor(weights or [1.0] * task.target.size)
    for batch in iterate_split(task, "valid"):
        scores = model.scores(batch)[0]
        losses = model.row_losses(scores, batch)
        if task.target.as_target == "class":
            assert batch.y is not None
            w = by_class[batch.y.clamp(min=0)]
            wrong += float((w * (scores.argmax(-1) != batch.y)).sum())
            losses = w * losses
        elif task.target.as_target == "labels":
            assert batch.y is not None
            sets.append((batch.y[:, :-1].numpy(), (scores >= 0).long().numpy()))
        nats += float(losses.sum())
    if sets:
        y, p = (np.concatenate(part) for part in zip(*sets, strict=True))
        wrong = -float(macro_f1_of_labels(y, p, y * p, np.ones((1, len(y))))[0])
    return wrong, nats
