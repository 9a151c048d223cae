"""What a linear model makes of a sample: where it is as good, no recurrent or attention model is called for.

    classify   tokens: logistic regression over tf-idf of 1- and 2-grams (characters: 1 to 4)
               numbers: ridge over the values and the summary of a series
    regress    ridge over the same
    tag        logistic regression over the five steps around each
    forecast   ridge from the past of a series to its future, the same for all series
    generate   how often a token followed the one, and the two, before it

A text that is written freely (translate, transcribe) has no such model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seqloom.lab.advise import tables
from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.data.task import Tokens

SMALL, FOLDS = 600, 5  # a sample up to this size is scored by cross-validation
TAGGED = 40_000  # steps that a tagger is learned from
COMMON = "the commonest class"
ALPHAS = tuple(10.0**k for k in range(-1, 5))  # of a ridge, the best chosen by leaving one out


@dataclass(frozen=True)
class Baseline:
    """Scores on examples that were held out."""

    metric: str  # accuracy, mse or nats
    linear: float
    how: str  # what the linear model is
    trivial: float
    trivially: str  # what the trivial one is
    bag: float | None = None  # of a linear model that does not see the order of tokens

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric == "accuracy"


def baseline(sample: Sample) -> Baseline | None:
    """The linear model of the task's kind, learned and scored on the sample."""
    from seqloom.lab.advise import ahead

    kinds = {"classify": _classify, "regress": _regress, "tag": _tag}
    kinds |= {"forecast": ahead.forecast, "generate": ahead.generate}
    found = kinds.get(sample.task.kind)
    return None if found is None else found(sample)


def _classify(sample: Sample) -> Baseline:
    y = sample.labels
    known = np.flatnonzero(y >= 0)
    y = y[known]
    trivial = float(np.bincount(y).max() / len(y))
    x = tables.table(sample)[known]
    if not isinstance(sample.task.input, Tokens):
        linear = _held_out(x, y, _ridge_classifier)
        return Baseline("accuracy", linear, "ridge over the series and its summary", trivial, COMMON)
    linear, bag = _held_out(x, y, _logistic), _held_out(tables.bag(sample)[known], y, _logistic)
    return Baseline("accuracy", linear, "logistic regression over tf-idf of n-grams", trivial, COMMON, bag)


def _regress(sample: Sample) -> Baseline:
    y = np.stack([e.y.numpy().ravel() for e in sample.examples]).astype(np.float64)
    known = np.isfinite(y).all(1)
    y = y[known]
    linear = _held_out(tables.table(sample)[known], y, _ridge)
    return Baseline("mse", linear, "ridge over the sequence", float(y.var(0).mean()), "the mean")


def _held_out(x: Any, y: Array, make: Any) -> float:
    """Accuracy, or mean squared error, on what was not learned from."""
    from sklearn.model_selection import KFold

    n, classes = x.shape[0], y.dtype.kind == "i"
    fit = int(n * 0.7)
    parts = [(np.arange(fit), np.arange(fit, n))]
    if n <= SMALL:
        parts = list(KFold(min(FOLDS, n)).split(np.arange(n)))
    total = 0.0
    for learn, look in parts:
        if classes and len(np.unique(y[learn])) < 2:
            said = np.full(len(look), y[learn][0])
        else:
            said = make().fit(x[learn], y[learn]).predict(x[look]).reshape(y[look].shape)
        total += float((said == y[look]).sum() if classes else np.square(said - y[look]).mean(1).sum())
    return total / sum(len(look) for _, look in parts)


def _tag(sample: Sample) -> Baseline:
    x, y, row = tables.windows(sample)
    known = (y >= 0) & (np.arange(len(y)) < TAGGED)
    x, y, row = x[known], y[known], row[known]
    learn = row < row.max() * 0.7 if row.max() else np.arange(len(y)) < 0.7 * len(y)
    trivial = float(np.bincount(y).max() / len(y))
    if len(np.unique(y[learn])) < 2 or learn.all():
        return Baseline("accuracy", trivial, COMMON, trivial, COMMON)
    found = _logistic(1e-6, 8).fit(x[learn], y[learn])
    linear = float((found.predict(x[~learn]) == y[~learn]).mean())
    return Baseline("accuracy", linear, "logistic regression over five steps", trivial, COMMON)


def _logistic(alpha: float = 1e-5, epochs: int = 15) -> Any:
    from sklearn.linear_model import SGDClassifier  # as good as a full solver here, and ten times faster

    return SGDClassifier("log_loss", alpha=alpha, max_iter=epochs, tol=None, random_state=0)


def _ridge() -> Any:
    from sklearn.linear_model import RidgeCV

    return RidgeCV(ALPHAS)


def _ridge_classifier() -> Any:
    from sklearn.linear_model import RidgeClassifierCV

    return RidgeClassifierCV(ALPHAS)
