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
from seqloom.lab.data.task import Features, Tokens, Values

WINDOWS = 600  # of a table, to learn from and to look at
MIXED = (0.3, 0.6)  # shares of the counts after one and after two tokens; the rest is how often a token is


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

    kinds = {"classify": _classify, "regress": _regress, "tag": _tag}
    kinds |= {"forecast": forecast, "generate": generate}
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


def forecast(sample: Sample) -> Baseline:
    """x - last -> y - last for every target series, one ridge for all of them."""
    some = sample.examples[:WINDOWS]
    target, inputs = sample.task.target, sample.task.input
    assert isinstance(target, Values) and isinstance(inputs, Features)
    order = [inputs.names.index(name) for name in target.names if name in inputs.names]
    if len(order) < target.size:
        y = np.stack([e.y.numpy() for e in some])
        return Baseline("mse", float(np.nanvar(y)), "the mean", float(np.nanvar(y)), "the mean")
    x = np.stack([e.x.numpy()[:, order].T for e in some]).astype(np.float64)  # (N, K, T)
    y = np.stack([e.y.numpy().T for e in some]).astype(np.float64)  # (N, K, S)
    x = np.nan_to_num(x)
    last = x[..., -1:]
    learn = np.arange(len(x)) < int(0.7 * len(x))
    X, Y = ((v - last)[learn].reshape(-1, v.shape[-1]) for v in (x, y))
    W = _solve_ridge(X, np.nan_to_num(Y))
    said = last + (x - last) @ W
    errors = {"ridge over the past": _mse(said, y, ~learn), "repeating the last value": _mse(last, y, ~learn)}
    how, trivially = errors
    return Baseline("mse", errors[how], how, errors[trivially], trivially)


def _solve_ridge(X: Array, Y: Array) -> Array:
    """W = (X'X + a I)^-1 X'Y with a a hundredth of the mean square."""
    gram = X.T @ X
    a = 1e-2 * np.trace(gram) / len(gram) + 1e-9
    return np.asarray(np.linalg.solve(gram + a * np.eye(len(gram)), X.T @ Y))


def _mse(said: Array, y: Array, rows: Array) -> float:
    return float(np.nanmean(np.square(said[rows] - y[rows])))


def generate(sample: Sample) -> Baseline:
    """Nats a token: interpolated counts after no, one and two tokens, against how often a token is."""
    cut = sample.fit
    fit, look = (_triples(sample, rows) for rows in (range(cut), range(cut, len(sample))))
    V = sample.task.target.size
    p1 = (np.bincount(fit[2], minlength=V) + 1) / (len(fit[2]) + V)
    pairs, triples = _counts(fit[1] * V + fit[2]), _counts((fit[0] * V + fit[1]) * V + fit[2])
    before1, before2 = _counts(fit[1]), _counts(fit[0] * V + fit[1])
    a, b, c = look
    n2 = _of(pairs, b * V + c) / np.maximum(1, _of(before1, b))
    n3 = _of(triples, (a * V + b) * V + c) / np.maximum(1, _of(before2, a * V + b))
    two, three = MIXED[0] * (_of(before1, b) > 0), MIXED[1] * (_of(before2, a * V + b) > 0)
    p = (1 - two - three) * p1[c] + two * n2 + three * n3
    linear, trivial = (float(-np.log(q).mean()) for q in (p, p1[c]))
    return Baseline("nats", linear, "counts after one and two tokens", trivial, "how often a token is")


def _triples(sample: Sample, rows: range) -> tuple[Array, Array, Array]:
    """Ids two before, one before and at every place that is asked for; 0 where there are none."""
    parts = [np.concatenate([[0], sample.examples[r].x.numpy()]) for r in rows]
    y = np.concatenate([sample.examples[r].y.numpy() for r in rows])
    a, b = np.concatenate([p[:-1] for p in parts]), np.concatenate([p[1:] for p in parts])
    known = y >= 0
    return a[known].astype(np.int64), b[known].astype(np.int64), y[known].astype(np.int64)


def _counts(keys: Array) -> tuple[Array, Array]:
    found, counts = np.unique(keys, return_counts=True)
    return found, counts


def _of(counts: tuple[Array, Array], keys: Array) -> Array:
    """How often each of the keys was counted."""
    found, n = counts
    at = np.minimum(np.searchsorted(found, keys), len(found) - 1)
    return np.where(found[at] == keys, n[at], 0)
