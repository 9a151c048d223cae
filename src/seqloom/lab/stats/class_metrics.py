"""Metrics of predicted classes that are not sums over rows, for several weightings of the rows at once.

Every function takes weights (R, n), how often each of n rows counts in each of R resamples, and returns (R,) values.
A value is NaN where it is not defined, such as the AUROC of rows of one class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
IGNORED = -100  # the class of a row without a target, torch's ignore_index


def macro_f1(y: Array, p: Array, w: Array) -> Array:
    """Return the mean F1 over all classes that occur with a weight; rows with y < 0 are always wrong."""
    classes = np.union1d(y[y >= 0], p)
    tp = _sum_by_class(p, classes, w * (p == y))
    both = _sum_by_class(y, classes, w * (y >= 0)) + _sum_by_class(p, classes, w)  # 2 tp + fp + fn
    return _mean_where(2 * tp / np.where(both > 0, both, 1.0), both > 0)


def macro_f1_of_labels(true: Array, predicted: Array, right: Array, w: Array) -> Array:
    """Return the mean F1 over all labels that occur or are predicted with a weight; counts (n, K) of each row."""
    tp, both = w @ right.astype(np.float64), w @ (true.astype(np.float64) + predicted)
    return _mean_where(2 * tp / np.where(both > 0, both, 1.0), both > 0)


def balanced_accuracy(y: Array, p: Array, w: Array) -> Array:
    """Return the mean recall over all true classes; a class that training lacks has a recall of 0."""
    known = y != IGNORED
    classes = np.unique(y[known])
    right, count = _sum_by_class(y, classes, w * (p == y)), _sum_by_class(y, classes, w * known)
    return _mean_where(right / np.where(count > 0, count, 1.0), count > 0)


def f1(is_positive: Array, says_positive: Array, w: Array) -> Array:
    """Return 2 tp / (2 tp + fp + fn) of the positive class; 0 if it is never predicted."""
    both = w @ is_positive + w @ says_positive
    return np.where(both > 0, 2 * (w @ (is_positive * says_positive)) / np.where(both > 0, both, 1.0), np.nan)


def auroc(is_positive: Array, q: Array, w: Array) -> Array:
    """Return the probability that a positive row has a higher score q than a negative one; ties count half."""
    positive, negative = _sum_by_score(is_positive, q, w)
    below = np.cumsum(negative, 1) - negative
    pairs = positive.sum(1) * negative.sum(1)
    wins = (positive * (below + negative / 2)).sum(1)
    return np.where(pairs > 0, wins / np.where(pairs > 0, pairs, 1.0), np.nan)


def average_precision(is_positive: Array, q: Array, w: Array) -> Array:
    """Return the sum over thresholds of precision times the increase of the recall (area of the PR steps)."""
    positive, negative = (part[:, ::-1] for part in _sum_by_score(is_positive, q, w))  # highest scores first
    tp, total = np.cumsum(positive, 1), positive.sum(1)
    predicted = tp + np.cumsum(negative, 1)
    area = (positive * tp / np.where(predicted > 0, predicted, 1.0)).sum(1)
    return np.where(total > 0, area / np.where(total > 0, total, 1.0), np.nan)


def average_over_classes(metric: Callable[[Array, Array, Array], Array], y: Array, q: Array, w: Array) -> Array:
    """Return the mean over classes of a metric such as `auroc` of each against the rest; q (n, K)."""
    each = np.stack([metric(y == k, q[:, k], w) for k in range(q.shape[1])], 1)  # (R, K)
    return _mean_where(np.nan_to_num(each), ~np.isnan(each))


def describe_classes(names: Sequence[str], y: Array, p: Array) -> list[dict[str, str | int | float | None]]:
    """Return a row for each class: how many rows it has, its precision, recall and F1 (None where undefined)."""
    known = y != IGNORED
    y, p = y[known], p[known]
    rows, said, right = (np.bincount(part[part >= 0], minlength=len(names)) for part in (y, p, p[p == y]))
    return _describe("class", names, rows, said, right)


def describe_labels(names: Sequence[str], columns: Mapping[str, Array]) -> list[dict[str, str | int | float | None]]:
    """Return a row for each label as `describe_classes` does, from columns (n, K): label_true, label_predicted, ..."""
    rows, said, right = (columns[f"label_{k}"].sum(0, dtype=np.int64) for k in ("true", "predicted", "right"))
    return _describe("label", names, rows, said, right)


def _describe(
    what: str, names: Sequence[str], rows: Array, said: Array, right: Array
) -> list[dict[str, str | int | float | None]]:
    return [
        {
            what: name,
            "rows": int(rows[k]),
            "precision": _share(right[k], said[k]),
            "recall": _share(right[k], rows[k]),
            "F1": _share(2 * right[k], rows[k] + said[k]),
        }
        for k, name in enumerate(names)
    ]


def _share(part: float, whole: float) -> float | None:
    return round(float(part / whole), 4) if whole else None


def trace_roc(is_positive: Array, q: Array) -> tuple[Array, Array]:
    """Return the false and the true positive rates at every threshold, from (0, 0) to (1, 1)."""
    tp, fp = _count_above(is_positive, q)
    return fp / max(1.0, fp[-1]), tp / max(1.0, tp[-1])


def trace_precision(is_positive: Array, q: Array) -> tuple[Array, Array]:
    """Return recall and precision at every threshold, the highest first."""
    tp, fp = (part[1:] for part in _count_above(is_positive, q))
    return tp / max(1.0, tp[-1]), tp / (tp + fp)


def trace_reliability(p: Array, right: Array, bins: int) -> tuple[Array, Array, float]:
    """Compare probabilities with outcomes in bins of equal numbers of rows.

    Returns:
        The mean probability and the share of correct rows of each bin, and the mean distance of the two over rows.
    """
    order = np.argsort(p, kind="stable")
    parts = [part for part in np.array_split(order, max(1, min(bins, len(p)))) if len(part)]
    x, y = (np.array([of[part].mean() for part in parts]) for of in (p, right))
    weights = np.array([len(part) for part in parts]) / max(1, len(p))
    return x, y, float((weights * np.abs(x - y)).sum())


def _count_above(is_positive: Array, q: Array) -> tuple[Array, Array]:
    """Return the positive and the negative rows above every distinct threshold, from none to all."""
    positive, negative = _sum_by_score(is_positive, q, np.ones((1, len(q))))
    return tuple(np.concatenate([[0.0], np.cumsum(part[0, ::-1])]) for part in (positive, negative))  # type: ignore[return-value]


def _mean_where(values: Array, known: Array) -> Array:
    """Return the mean of each row over the places where `known` is true; NaN for a row without any."""
    count = known.sum(1)
    return np.where(count > 0, (values * known).sum(1) / np.maximum(count, 1), np.nan)


def _sum_by_class(of: Array, classes: Array, w: Array) -> Array:
    """Sum weights (R, n) by class, (R, K); rows of other classes are left out."""
    from scipy.sparse import csr_matrix

    at = np.searchsorted(classes, of).clip(max=max(0, len(classes) - 1))
    rows = np.flatnonzero(classes[at] == of) if len(classes) else np.empty(0, np.int64)
    onehot = csr_matrix((np.ones(len(rows)), (at[rows], rows)), (len(classes), len(of)))
    return np.asarray((onehot @ w.T).T)


def _sum_by_score(is_positive: Array, q: Array, w: Array) -> tuple[Array, Array]:
    """Sum the weights of positive and of negative rows by distinct score, ascending: two (R, scores)."""
    if not len(q):
        return np.zeros((len(w), 1)), np.zeros((len(w), 1))
    order = np.argsort(q, kind="stable")
    starts = np.flatnonzero(np.diff(q[order], prepend=np.nan) != 0)
    w, is_positive = w[:, order], is_positive[order].astype(np.float64)
    return np.add.reduceat(w * is_positive, starts, 1), np.add.reduceat(w * (1 - is_positive), starts, 1)
