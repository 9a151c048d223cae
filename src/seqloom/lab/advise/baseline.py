"""A linear model on the sample: if it is good enough, no recurrent or attention model is needed.

    classify   tokens: logistic regression over TF-IDF of 1- and 2-grams (characters: 1- to 4-grams)
               numbers: ridge over the values and a summary of the series
    regress    ridge over the same features
    tag        logistic regression over the five steps around each
    forecast   ridge from the past of a series to its future, the same for all series
    generate   interpolated counts of bigrams and trigrams

Translation and transcription have no such model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.data.task import Features, Tokens
from seqloom.lab.kinds.baselines.features import Ngrams, SeriesFeatures
from seqloom.lab.kinds.forms import FORMS, Target
from seqloom.lab.kinds.results import get_values

if TYPE_CHECKING:  # both take long to import
    from scipy.sparse import csr_matrix
    from sklearn.base import BaseEstimator

MOST_WINDOWS = 600  # windows of a series for fitting and scoring
NGRAM_WEIGHTS = (0.3, 0.6)  # weights of bigrams and trigrams; the rest is that of unigrams
FIT_SHARE = 0.7
SMALL_SAMPLE, FOLDS = 600, 5  # a sample up to this size is scored by cross-validation
MOST_TAGS = 40_000  # steps that a tagger is fitted to
CLASS_FREQUENCY = "the most frequent class"
ALPHAS = tuple(10.0**k for k in range(-1, 5))  # strengths of a ridge, chosen by leave-one-out
TAG_WINDOW = (-2, -1, 0, 1, 2)  # steps around a tag
PADDED_ROWS = 256  # rows that are padded to one length


@dataclass(frozen=True)
class Baseline:
    """Scores of a linear and of a trivial model on held-out examples."""

    metric: str  # accuracy, mse or nats
    linear: float
    how: str  # what the linear model is
    trivial: float
    trivially: str  # what the trivial model is
    bag: float | None = None  # score of a linear model that ignores the order of tokens

    @property
    def title(self) -> str:
        """The name of the metric in a text."""
        return self.metric.upper() if self.metric == "mse" else self.metric

    @property
    def higher(self) -> bool:
        """Whether more is better."""
        return self.metric == "accuracy"


def fit_linear_baseline(sample: Sample) -> Baseline | None:
    """Fit and score the linear model for the task's kind; None if there is none."""
    fits: dict[Target | None, Callable[[Sample], Baseline]] = {
        "class": _classify,
        "numbers": _regress,
        "tags": _tag,
        "series": _forecast,
        "next": _generate,
    }
    fit = fits.get(FORMS[sample.task.kind].target)
    return None if fit is None else fit(sample)


def _classify(sample: Sample) -> Baseline:
    y = sample.labels
    known = np.flatnonzero(y >= 0)
    y = y[known]
    trivial = float(np.bincount(y).max() / len(y))
    x = sequence_features(sample)[known]
    if not isinstance(sample.task.input, Tokens):
        from sklearn.linear_model import RidgeClassifierCV

        linear = _score_held_out(x, y, lambda: RidgeClassifierCV(ALPHAS))
        return Baseline("accuracy", linear, "ridge over the series and its summary", trivial, CLASS_FREQUENCY)
    linear, bag = _score_held_out(x, y, _logistic), _score_held_out(_bag_of_tokens(sample)[known], y, _logistic)
    return Baseline("accuracy", linear, "logistic regression over TF-IDF n-grams", trivial, CLASS_FREQUENCY, bag)


def _regress(sample: Sample) -> Baseline:
    from sklearn.linear_model import RidgeCV

    y = np.stack([e.y.numpy().ravel() for e in sample.examples]).astype(np.float64)
    known = np.isfinite(y).all(1)
    y = y[known]
    linear = _score_held_out(sequence_features(sample)[known], y, lambda: RidgeCV(ALPHAS))
    return Baseline("mse", linear, "ridge over the sequence", float(y.var(0).mean()), "the mean")


def _score_held_out(x: Array | csr_matrix, y: Array, make: Callable[[], BaseEstimator]) -> float:
    """Return the accuracy, or the mean squared error, on held-out rows."""
    from sklearn.model_selection import KFold

    n, classes = x.shape[0], y.dtype.kind == "i"
    cut = int(n * FIT_SHARE)
    parts = [(np.arange(cut), np.arange(cut, n))]
    if n <= SMALL_SAMPLE:
        parts = list(KFold(min(FOLDS, n)).split(np.arange(n)))
    total = 0.0
    for fit_rows, held in parts:
        if classes and len(np.unique(y[fit_rows])) < 2:
            predicted = np.full(len(held), y[fit_rows][0])
        else:
            predicted = make().fit(x[fit_rows], y[fit_rows]).predict(x[held]).reshape(y[held].shape)
        total += float((predicted == y[held]).sum() if classes else np.square(predicted - y[held]).mean(1).sum())
    return total / sum(len(held) for _, held in parts)


def _tag(sample: Sample) -> Baseline:
    x, y, row = _windows(sample)
    known = (y >= 0) & (np.arange(len(y)) < MOST_TAGS)
    x, y, row = x[known], y[known], row[known]
    learn = row < row.max() * 0.7 if row.max() else np.arange(len(y)) < 0.7 * len(y)
    trivial = float(np.bincount(y).max() / len(y))
    if len(np.unique(y[learn])) < 2 or learn.all():
        return Baseline("accuracy", trivial, CLASS_FREQUENCY, trivial, CLASS_FREQUENCY)
    model = _logistic(1e-6, 8).fit(x[learn], y[learn])
    linear = float((model.predict(x[~learn]) == y[~learn]).mean())
    return Baseline("accuracy", linear, "logistic regression over five steps", trivial, CLASS_FREQUENCY)


def _logistic(alpha: float = 1e-5, epochs: int = 15) -> BaseEstimator:
    from sklearn.linear_model import SGDClassifier  # as good as a full solver here, and ten times faster

    return SGDClassifier("log_loss", alpha=alpha, max_iter=epochs, tol=None, random_state=0)


def _forecast(sample: Sample) -> Baseline:
    """Fit one ridge x - last -> y - last for all target series."""
    from sklearn.linear_model import Ridge

    examples = sample.examples[:MOST_WINDOWS]
    target, inputs = get_values(sample.task), sample.task.input
    assert isinstance(inputs, Features)
    order = [inputs.names.index(name) for name in target.names if name in inputs.names]
    if len(order) < target.size:
        y = np.stack([e.y.numpy() for e in examples])
        return Baseline("mse", float(np.nanvar(y)), "the mean", float(np.nanvar(y)), "the mean")
    x = np.stack([e.x.numpy()[:, order].T for e in examples]).astype(np.float64)  # (N, K, T)
    y = np.stack([e.y.numpy().T for e in examples]).astype(np.float64)  # (N, K, S)
    x = np.nan_to_num(x)
    last = x[..., -1:]
    learn = np.arange(len(x)) < int(0.7 * len(x))
    X, Y = ((v - last)[learn].reshape(-1, v.shape[-1]) for v in (x, y))
    strength = 1e-2 * np.square(X).sum(0).mean() + 1e-9  # a hundredth of the mean square of X
    W = Ridge(strength, fit_intercept=False, solver="cholesky").fit(X, np.nan_to_num(Y)).coef_.T
    predicted = last + (x - last) @ W
    errors = {"ridge over the past": _mse(predicted, y, ~learn), "the last value": _mse(last, y, ~learn)}
    how, trivially = errors
    return Baseline("mse", errors[how], how, errors[trivially], trivially)


def _mse(predicted: Array, y: Array, rows: Array) -> float:
    return float(np.nanmean(np.square(predicted[rows] - y[rows])))


def _generate(sample: Sample) -> Baseline:
    """Return the nats per token of interpolated trigrams, and of unigrams."""
    cut = sample.fit
    fit, look = (_triples(sample, rows) for rows in (range(cut), range(cut, len(sample))))
    V = sample.task.target.size
    p1 = (np.bincount(fit[2], minlength=V) + 1) / (len(fit[2]) + V)
    pairs, triples = _counts(fit[1] * V + fit[2]), _counts((fit[0] * V + fit[1]) * V + fit[2])
    before1, before2 = _counts(fit[1]), _counts(fit[0] * V + fit[1])
    a, b, c = look
    n2 = _look_up(pairs, b * V + c) / np.maximum(1, _look_up(before1, b))
    n3 = _look_up(triples, (a * V + b) * V + c) / np.maximum(1, _look_up(before2, a * V + b))
    two, three = NGRAM_WEIGHTS[0] * (_look_up(before1, b) > 0), NGRAM_WEIGHTS[1] * (_look_up(before2, a * V + b) > 0)
    p = (1 - two - three) * p1[c] + two * n2 + three * n3
    linear, trivial = (float(-np.log(q).mean()) for q in (p, p1[c]))
    return Baseline("nats", linear, "interpolated trigrams", trivial, "unigram frequencies")


def _triples(sample: Sample, rows: range) -> tuple[Array, Array, Array]:
    """Return for every target its id and the two ids before it; 0 before the start."""
    parts = [np.concatenate([[0], sample.examples[r].x.numpy()]) for r in rows]
    y = np.concatenate([sample.examples[r].y.numpy() for r in rows])
    a, b = np.concatenate([p[:-1] for p in parts]), np.concatenate([p[1:] for p in parts])
    known = y >= 0
    return a[known].astype(np.int64), b[known].astype(np.int64), y[known].astype(np.int64)


def _counts(keys: Array) -> tuple[Array, Array]:
    values, counts = np.unique(keys, return_counts=True)
    return values, counts


def _look_up(counts: tuple[Array, Array], keys: Array) -> Array:
    """Return the count of each key."""
    values, n = counts
    at = np.minimum(np.searchsorted(values, keys), len(values) - 1)
    return np.where(values[at] == keys, n[at], 0)


def sequence_features(sample: Sample) -> Array | csr_matrix:
    """Return (N, columns): TF-IDF of n-grams, or the values and a summary of a series."""
    space = sample.task.input
    return (Ngrams.of(space) if isinstance(space, Tokens) else SeriesFeatures()).fit(_pad_rows(sample))


def _bag_of_tokens(sample: Sample) -> csr_matrix:
    """Return (N, columns): TF-IDF of single tokens, ignoring their order."""
    assert isinstance(sample.task.input, Tokens)
    return Ngrams(sample.task.input.size, orders=(1,)).fit(_pad_rows(sample))


def _pad_rows(sample: Sample) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(sample), PADDED_ROWS):
        batch = sample.batch(range(start, min(start + PADDED_ROWS, len(sample))))
        yield batch.x.numpy(), batch.lengths.numpy()


def _windows(sample: Sample) -> tuple[Array | csr_matrix, Array, Array]:
    """Return (steps, columns) of the tokens or numbers around each step, its target, and its example."""
    from scipy.sparse import csr_matrix

    values, starts = sample.flat()
    lengths = sample.lengths
    row = np.repeat(np.arange(len(sample)), lengths)
    here = np.arange(len(values))
    near = [(here + k >= starts[row]) & (here + k < starts[row] + lengths[row]) for k in TAG_WINDOW]
    at = [np.where(ok, here + k, 0) for ok, k in zip(near, TAG_WINDOW, strict=True)]
    y = np.concatenate([e.y.numpy() for e in sample.examples])
    if values.ndim > 1:
        return np.concatenate([values[a] * ok[:, None] for a, ok in zip(at, near, strict=True)], 1), y, row
    size = sample.task.input.size
    columns = np.stack([np.where(ok, values[a], 0) + size * i for i, (a, ok) in enumerate(zip(at, near, strict=True))])
    ones = np.ones(columns.size, np.float32), columns.T.ravel(), np.arange(0, columns.size + 1, len(TAG_WINDOW))
    return csr_matrix(ones, (len(values), size * len(TAG_WINDOW))), y, row
