"""Linear models of scikit-learn over n-grams of a text, or over the values and the summary of a series."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.compare.baselines.features import Ngrams, Series
from seqloom.lab.compare.baselines.said import Plain
from seqloom.lab.compare.data import some
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.stats.metrics import Array
from seqloom.lab.training.for_task import ForClassify, ForRegress, ForTask

DENSE, SPARSE = (0.01, 0.1, 1.0), (1.0, 10.0)  # C of scikit-learn, of series and of text
RIDGES = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # 1 / alpha
ROUNDS = 100


class Linear(Plain):
    """W f(x) + b of the features f."""

    def __init__(self, features: Any, fitted: Any, classes: Any, outputs: int) -> None:
        parts = getattr(fitted, "estimators_", [fitted])
        super().__init__(sum(part.coef_.size + np.size(part.intercept_) for part in parts))
        self.features, self.fitted, self.classes, self.outputs = features, fitted, classes, outputs

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        f = self.features(x.numpy(), lengths.numpy())
        if self.classes is None:
            return torch.from_numpy(np.asarray(self.fitted.predict(f)).reshape(len(x), -1)).float()
        said = np.full((len(x), self.outputs), -30.0)  # a class that training lacks
        said[:, self.classes] = np.log(self.fitted.predict_proba(f).clip(min=1e-13))
        return torch.from_numpy(said).float()


def logistic(task: Task) -> ForTask:
    """Of text one against the rest, which is much faster where most features are 0."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    features, f, y = _training(task)
    text = isinstance(task.input, Tokens)

    def fitted(c: float) -> ForTask:
        if text:
            made = OneVsRestClassifier(LogisticRegression(C=c, solver="liblinear", dual=True)).fit(f, y)
        else:
            made = LogisticRegression(C=c, max_iter=ROUNDS).fit(f, y)
        return ForClassify(Linear(features, made, made.classes_, task.target.size))

    return _best(fitted, SPARSE if text else DENSE, task)


def ridge(task: Task) -> ForTask:
    from sklearn.linear_model import Ridge

    features, f, y = _training(task)
    known = ~np.isnan(y).any(1)
    return _best(
        lambda c: ForRegress(Linear(features, Ridge(alpha=1 / c).fit(f[known], y[known]), None, task.target.size)),
        RIDGES,
        task,
    )


def _training(task: Task) -> tuple[Any, Any, Array]:
    """The features, fitted, and what they make of the training split."""
    rows: list[tuple[Array, Array]] = []
    ys = []
    for batch in some(task, "train"):
        assert batch.y is not None
        keep = batch.y >= 0 if task.kind == "classify" else torch.ones(len(batch), dtype=torch.bool)
        rows.append((batch.x[keep].numpy(), batch.lengths[keep].numpy()))
        ys.append(batch.y[keep].numpy())
    features: Any = Ngrams(task.input) if isinstance(task.input, Tokens) else Series()
    return features, features.fit(rows), np.concatenate(ys)


def _best(fitted: Callable[[float], ForTask], strengths: tuple[float, ...], task: Task) -> ForTask:
    """Chosen on the validation rows, as the models' steps are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so many rounds are enough, converged or not
        made = [fitted(c) for c in strengths]
    return min(made, key=lambda model: _wrong(model, task))


@torch.no_grad()
def _wrong(model: ForTask, task: Task) -> tuple[float, float]:
    wrong = nats = 0.0
    for batch in some(task, "valid"):
        said = model.scores(batch)[0]
        nats += float(model.row_losses(said, batch).sum())
        if task.kind == "classify":
            wrong += float((said.argmax(-1) != batch.y).sum())
    return wrong, nats
