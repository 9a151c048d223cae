"""Linear models of what comes next: the values of a series, the tokens of a text."""

from __future__ import annotations

import numpy as np

from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.data.task import Features, Values

WINDOWS = 600  # of a table, to learn from and to look at
MIXED = (0.3, 0.6)  # shares of the counts after one and after two tokens; the rest is how often a token is


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
    W = _ridge(X, np.nan_to_num(Y))
    said = last + (x - last) @ W
    errors = {"ridge over the past": _mse(said, y, ~learn), "repeating the last value": _mse(last, y, ~learn)}
    how, trivially = errors
    return Baseline("mse", errors[how], how, errors[trivially], trivially)


def _ridge(X: Array, Y: Array) -> Array:
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
