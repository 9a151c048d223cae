"""scikit-learn estimators: sequences in; classes, numbers or tags out.

    SequenceClassifier("bi_lstm", epochs=10).fit(texts, labels).predict(["more texts"])

X is a list of texts, of lists of tokens, or of arrays (T,) or (T, D); or an array (N, T) or (N, T, D).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.model_selection import train_test_split
from sklearn.utils import Tags as EstimatorTags
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.data.pipeline.new_rows import CHUNK
from seqloom.lab.kinds.forms import find_kind
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.fit import isolate_random, validate_settings
from seqloom.lab.training.predict import encode_rows, split_by_length
from seqloom.lab.training.train import train

Array = np.ndarray[Any, Any]
MIN_EXAMPLES_TO_SPLIT = 10  # with fewer examples none is held out
SEQUENCES = "texts, lists of tokens, or arrays (T,) or (T, D)"


class _SequenceEstimator(BaseEstimator):  # type: ignore[misc]
    """Shared parts of the three estimators."""

    _kind: Kind

    def __init__(
        self,
        model: str = "gru",
        *,
        hidden: int = 64,
        epochs: int = 20,
        batch: int = 32,
        lr: float = 3e-3,
        validation: float = 0.1,
        settings: Mapping[str, Any] | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.validation = validation
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> EstimatorTags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # NaN marks missing values
        tags.input_tags.string = True
        tags.input_tags.three_d_array = True
        return tags

    def _train(self, rows: Sequence[Any], y: Sequence[Any] | Array, strata: Array | None) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31))
        own = {"model": self.model, "hidden": self.hidden, "epochs": self.epochs, "batch": self.batch, "lr": self.lr}
        training, reading = validate_settings(TrainSettings, own | {"seed": seed} | dict(self.settings or {}))
        task = MemoryTask(self._kind.name, rows, y, self._split(len(rows), strata, seed), reading)
        self._kind.check_settings(task, training)
        with tempfile.TemporaryDirectory() as folder, isolate_random():
            run = train(task, training, Path(folder) / "run")
            self.task_, self.model_ = run.task, run.model()

    def _split(self, n: int, strata: Array | None, seed: int) -> dict[str, Array]:
        """Return the indices of the rows to train on and of those that select the best epoch."""
        if not 0 <= self.validation < 1:
            raise UserError(f"validation must be a share from 0 to below 1, got {self.validation}")
        held, every = round(self.validation * n), np.arange(n)
        if n < MIN_EXAMPLES_TO_SPLIT or not held:
            return {"train": every, "valid": every}
        if strata is not None:
            counts = np.bincount(strata)
            rare = counts[counts > 0].min() < 2 or held < (counts > 0).sum()
            strata = None if rare else strata  # some class is too rare to be in both parts
        left, right = train_test_split(every, test_size=held, random_state=seed, stratify=strata)
        return {"train": np.sort(left), "valid": np.sort(right)}

    def _class_numbers(self) -> list[int]:
        """Return the index into `classes_` of each output of the model."""
        return [int(name) for name in getattr(self.task_.target, "names", ())]

    def _predict(self, X: Iterable[Any], field: str) -> list[Any]:
        """Return the `values` or `probabilities` that the model predicts for each sequence."""
        check_is_fitted(self, "model_")
        rows = _read_sequences(self, X, reset=False)
        is_per_step = self._kind.is_per_step(self.task_)
        outputs: list[Any] = [None] * len(rows)
        for start in range(0, len(rows), CHUNK):
            batch = encode_rows(self.task_, rows[start : start + CHUNK], before=start)
            for part, numbers in split_by_length(batch):
                values = getattr(self.model_.predict(part), field)
                for number, n, value in zip(numbers, part.lengths.tolist(), values, strict=True):
                    outputs[start + number] = value[:n].cpu() if is_per_step else value.cpu()
        return outputs


class SequenceClassifier(ClassifierMixin, _SequenceEstimator):  # type: ignore[misc]
    """Predict a class for each sequence.

    Args:
        model: A layer by name, as `seqloom train --model` takes it.
        hidden: Hidden size of the layer.
        epochs: Passes over the data; the weights of the best epoch are kept.
        batch: Examples per batch.
        lr: Maximum learning rate.
        validation: Share of the examples that is held out to choose the best epoch.
        settings: Any other setting of `seqloom train`, by name.
        random_state: Seed of the initial weights, the order of the data and the held-out examples.

    Example:
        >>> model = seqloom.SequenceClassifier(hidden=8, epochs=5, random_state=0)
        >>> model.fit(["good", "bad"] * 20, [1, 0] * 20).predict(["good"])
        array([1])
    """

    _kind = KINDS[find_kind("class")]

    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> SequenceClassifier:
        """Train on sequences X and classes y (N,), at least two different ones."""
        rows = _read_sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceClassifier requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        check_consistent_length(rows, labels)
        if labels.dtype.kind == "f":
            assert_all_finite(labels, input_name="y")
        _check_class_types(labels)
        check_classification_targets(labels)
        self.classes_, ids = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"y has only one class, {str(self.classes_[0])!r}; give at least two")
        self._train(rows, ids, ids)
        return self

    def predict_proba(self, X: Iterable[Any]) -> Array:
        """Return probabilities (N, classes) in the order of `classes_`."""
        probabilities = np.stack([p.numpy() for p in self._predict(X, "probabilities")])
        full = np.zeros((len(probabilities), len(self.classes_)), dtype=np.float64)
        full[:, self._class_numbers()] = probabilities  # a rare class may be missing from training
        return full / full.sum(1, keepdims=True)

    def predict(self, X: Iterable[Any]) -> Array:
        """Return the most probable class of each sequence, (N,)."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


class SequenceRegressor(RegressorMixin, _SequenceEstimator):  # type: ignore[misc]
    """Predict a number, or several, for each sequence.

    Args:
        model: A layer by name, as `seqloom train --model` takes it.
        hidden: Hidden size of the layer.
        epochs: Passes over the data; the weights of the best epoch are kept.
        batch: Examples per batch.
        lr: Maximum learning rate.
        validation: Share of the examples that is held out to choose the best epoch.
        settings: Any other setting of `seqloom train`, by name.
        random_state: Seed of the initial weights, the order of the data and the held-out examples.

    Example:
        >>> model = seqloom.SequenceRegressor(hidden=8, epochs=1, random_state=0)
        >>> model.fit([[0.0, 1.0], [1.0, 2.0]] * 20, [1.0, 3.0] * 20).predict([[0.5, 1.5]]).shape
        (1,)
    """

    _kind = KINDS[find_kind("numbers")]

    def __sklearn_tags__(self) -> EstimatorTags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> SequenceRegressor:
        """Train on sequences X and numbers y, (N,) or (N, K)."""
        rows = _read_sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceRegressor requires y to be passed, but the target y is None")
        values = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(rows, values)
        self._flat = values.ndim == 1
        self._train(rows, values.reshape(len(values), -1), None)
        return self

    def predict(self, X: Iterable[Any]) -> Array:
        """Return numbers (N,) or (N, K), like the y of `fit`."""
        scaled = torch.stack(self._predict(X, "values"))
        values = np.asarray(self.task_.decode(scaled))
        return values[:, 0] if self._flat else values


class SequenceTagger(_SequenceEstimator):
    """Predict a tag for every step of each sequence.

    Args:
        model: A layer by name, as `seqloom train --model` takes it.
        hidden: Hidden size of the layer.
        epochs: Passes over the data; the weights of the best epoch are kept.
        batch: Examples per batch.
        lr: Maximum learning rate.
        validation: Share of the examples that is held out to choose the best epoch.
        settings: Any other setting of `seqloom train`, by name.
        random_state: Seed of the initial weights, the order of the data and the held-out examples.

    Example:
        >>> model = seqloom.SequenceTagger(hidden=8, epochs=5, random_state=0)
        >>> model.fit([["a", "cat"]] * 20, [["DET", "NOUN"]] * 20).predict([["a", "cat"]])
        [['DET', 'NOUN']]
    """

    _kind = KINDS[find_kind("tags")]

    def fit(self, X: Iterable[Any], y: Iterable[Any]) -> SequenceTagger:
        """Train on sequences X and lists of tags y, one tag for each step."""
        rows = _read_sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceTagger requires y to be passed, but the target y is None")
        check_consistent_length(rows, y)
        targets = [_read_tags(tags, number) for number, tags in enumerate(y)]
        for number, (row, tags) in enumerate(zip(rows, targets, strict=True)):
            if len(row) != len(tags):
                raise UserError(
                    f"X[{number}] has {count(len(row), 'step')} but y[{number}] has {count(len(tags), self._kind.noun)}"
                )
        _check_class_types(tag for tags in targets for tag in tags)
        self.classes_, ids = np.unique(np.concatenate([np.asarray(tags) for tags in targets]), return_inverse=True)
        ends = np.cumsum([len(tags) for tags in targets])
        self._train(rows, [part.tolist() for part in np.split(ids, ends[:-1])], None)
        return self

    def predict(self, X: Iterable[Any]) -> list[list[Any]]:
        """Return a list of tags for each sequence."""
        tags = self._predict(X, "values")  # raises if not fitted
        names = self.classes_[self._class_numbers()]
        return [names[ids.numpy()].tolist() for ids in tags]

    def score(self, X: Iterable[Any], y: Iterable[Iterable[Any]]) -> float:
        """Return the share of steps with the correct tag."""
        tags = self.predict(X)
        return float(accuracy_score(np.concatenate([np.asarray(list(t)) for t in y]), np.concatenate(tags)))


def _read_tags(tags: object, number: int) -> list[Any]:
    if not isinstance(tags, Iterable):
        raise UserError(f"y[{number}] is {tags!r}; give a list of tags for every sequence, one for each step")
    return list(tags)


def _check_class_types(y: Iterable[Any]) -> None:
    """Raise a UserError if texts are mixed with other types, or a class is missing."""
    values = list(y)
    texts = [isinstance(value, str) for value in values]
    if any(texts) and not all(texts):
        wrong = values[texts.index(False)]
        raise UserError(f"y holds texts and {wrong!r}; remove rows without a class, and give classes of one type")
    missing = [v for v in values if v is None or (isinstance(v, (float, np.floating)) and np.isnan(v))]
    if missing:
        raise UserError(f"y holds {missing[0]!r}, which is not a class; remove rows without a class")


def _read_sequences(estimator: _SequenceEstimator, X: Iterable[Any], *, reset: bool) -> list[Any]:
    """Return X as a list of texts, of lists of tokens, or of arrays (T, D).

    A table (N, T) is N series of T numbers and must keep its T, as everywhere in scikit-learn; an array (N, T, D) is
    N series of T steps. Series of different lengths come as a list of arrays.
    """
    if _is_table(X):
        _check_numeric(X)
        table = validate_data(estimator, X, reset=reset, dtype=np.float64, ensure_all_finite="allow-nan")
        series = list(table[:, :, None])
        _check_kind(estimator, _describe(series[0]), reset)
        return series
    rows = list(X)
    if not rows:
        raise UserError(f"X is empty; give at least one sequence: {SEQUENCES}")
    sequences = [_read_row(row, number) for number, row in enumerate(rows)]
    kinds = {_describe(sequence) for sequence in sequences}
    if len(kinds) > 1:
        raise UserError(f"X mixes {' and '.join(sorted(kinds))}; give one kind: {SEQUENCES}")
    _check_kind(estimator, kinds.pop(), reset)
    if reset:
        _count_columns(estimator, rows)
    return sequences


def _count_columns(estimator: _SequenceEstimator, rows: Sequence[Any]) -> None:
    """Store the number of columns of a table that is given as a list of lists; other lists have none to count.

    A table that `predict` gets must have as many; lists may hold series of any length.
    """
    lengths = {len(row) if isinstance(row, list) and all(not np.ndim(v) for v in row) else None for row in rows}
    is_table = len(lengths) == 1 and None not in lengths and not isinstance(rows[0][0], str)
    if is_table:
        estimator.n_features_in_ = lengths.pop()
    elif hasattr(estimator, "n_features_in_"):
        del estimator.n_features_in_


def _is_table(X: Iterable[Any]) -> bool:
    """Return whether scikit-learn's rules for X apply."""
    if isinstance(X, (list, tuple)):
        return False
    if not hasattr(X, "__array__") or not hasattr(X, "shape"):
        return True  # sparse matrices and other objects: scikit-learn explains what is wrong with them
    array = np.asarray(X)
    if array.ndim == 3:
        return False
    holds_sequences = len(array) > 0 and isinstance(array[0], (str, list, tuple, np.ndarray)) if array.ndim else False
    return not (array.ndim == 1 and array.dtype.kind in "OUT" and holds_sequences)


def _check_numeric(X: Iterable[Any]) -> None:
    """Raise a UserError if X is a frame of texts, which must be given as one column."""
    columns = getattr(X, "columns", None)
    array = np.asarray(X) if columns is not None else np.zeros(0)
    if columns is not None and array.ndim == 2 and array.size and isinstance(array.flat[0], str):
        names = list(map(str, columns))
        raise UserError(f"X is a frame of texts; give the column that holds the sequences, such as X[{names[0]!r}]")


def _read_row(row: Sequence[Any] | Array, number: int) -> str | list[str] | Array:
    if isinstance(row, str):
        if not row.strip():
            raise UserError(f"X[{number}] is an empty text; remove it")
        return row
    has_words = np.ndim(row) == 1 and len(row) and isinstance(next(iter(row)), str)  # arrays and pandas series too
    tokens = list(row) if isinstance(row, (list, tuple)) or has_words else row
    if not np.ndim(tokens) and not isinstance(tokens, list):
        raise UserError(f"X[{number}] is {row!r}, which is not a sequence; give {SEQUENCES}")
    if len(tokens) == 0:
        raise UserError(f"X[{number}] is empty; remove it")
    if isinstance(tokens, list) and isinstance(tokens[0], str):
        return [str(token) for token in tokens]
    try:
        array = np.asarray(tokens, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"X[{number}] is neither words nor numbers (T,) or (T, D)") from None
    if array.ndim > 2:
        raise UserError(f"X[{number}] has the shape {array.shape}; give (T,) or (T, D)")
    if np.isinf(array).any():
        raise UserError(f"X[{number}] contains infinity; use NaN for missing values")
    return array[:, None] if array.ndim == 1 else array


def _describe(row: str | list[str] | Array) -> str:
    if isinstance(row, str):
        return "texts"
    return "lists of tokens" if isinstance(row, list) else f"arrays of {count(row.shape[1], 'feature')}"


def _check_kind(estimator: _SequenceEstimator, kind: str, reset: bool) -> None:
    """Store the kind of the rows in `fit`; raise a UserError if later rows differ from it."""
    if reset:
        estimator.sequence_kind_ = kind
    elif kind != estimator.sequence_kind_:
        raise UserError(f"X holds {kind}, but fit was given {estimator.sequence_kind_}")
