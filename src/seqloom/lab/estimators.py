"""The models as scikit-learn estimators: sequences in, classes, numbers or tags out.

    SequenceClassifier("bi_lstm", epochs=10).fit(texts, labels).predict(["more of them"])

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
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d

from seqloom.core.errors import UserError
from seqloom.lab.data.memory import MemoryTask
from seqloom.lab.data.pipeline.new_rows import CHUNK
from seqloom.lab.data.task import Classes, Kind, Tags
from seqloom.lab.estimator_input import sequences
from seqloom.lab.training.fit import check_effects, isolate_random, split_settings
from seqloom.lab.training.predict import encode_rows, split_by_length
from seqloom.lab.training.train import train

Array = np.ndarray[Any, Any]
FEW = 10  # examples: with fewer, none is held out


class _Sequences(BaseEstimator):  # type: ignore[misc]
    """What the three have in common.

    model         a layer by name, as `seqloom train --model` takes it
    hidden        its width
    epochs        passes over the data; the best one is kept
    batch         examples in a step
    lr            the learning rate at its highest
    validation    share of the examples that choose the best epoch
    settings      any other setting of `seqloom train`, by name
    random_state  decides the weights, the order and what is held out
    """

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
        random_state: Any = None,
    ) -> None:
        self.model = model
        self.hidden = hidden
        self.epochs = epochs
        self.batch = batch
        self.lr = lr
        self.validation = validation
        self.settings = settings
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # what is missing is marked
        tags.input_tags.string = True
        tags.input_tags.three_d_array = True
        return tags

    def _train(self, rows: Sequence[Any], y: Any, strata: Array | None) -> None:
        seed = int(check_random_state(self.random_state).randint(2**31))
        own = {"model": self.model, "hidden": self.hidden, "epochs": self.epochs, "batch": self.batch, "lr": self.lr}
        training, reading = split_settings(own | {"seed": seed} | dict(self.settings or {}))
        task = MemoryTask(self._kind, rows, y, self._sides(len(rows), strata, seed), reading)
        check_effects(task, training)
        with tempfile.TemporaryDirectory() as folder, isolate_random():
            run = train(task, training, Path(folder) / "run")
            self.task_, self.model_ = run.task, run.model()

    def _sides(self, n: int, strata: Array | None, seed: int) -> dict[str, Array]:
        """Row numbers to train on and to choose the best epoch by."""
        if not 0 <= self.validation < 1:
            raise UserError(f"validation must be a share from 0 to below 1, got {self.validation}")
        held, every = round(self.validation * n), np.arange(n)
        if n < FEW or not held:
            return {"train": every, "valid": every}
        if strata is not None:
            counts = np.bincount(strata)
            rare = counts[counts > 0].min() < 2 or held < (counts > 0).sum()
            strata = None if rare else strata  # too few of some class to be in both
        left, right = train_test_split(every, test_size=held, random_state=seed, stratify=strata)
        return {"train": np.sort(left), "valid": np.sort(right)}

    def _ids(self) -> list[int]:
        """Which of `classes_` each output of the model is."""
        target = self.task_.target
        assert isinstance(target, (Classes, Tags))
        return [int(name) for name in target.names]

    def _predicted(self, X: Any, what: str) -> list[Any]:
        """Of each sequence, what the model says: its `values` or its `probabilities`."""
        check_is_fitted(self, "model_")
        rows = sequences(self, X, reset=False)
        found: list[Any] = [None] * len(rows)
        for start in range(0, len(rows), CHUNK):
            for part, at in split_by_length(encode_rows(self.task_, rows[start : start + CHUNK], before=start)):
                said = self.model_.predict(part)
                for row, n, one in zip(at, part.lengths.tolist(), getattr(said, what), strict=True):
                    found[start + row] = one[:n].cpu() if self._kind == "tag" else one.cpu()
        return found


class SequenceClassifier(ClassifierMixin, _Sequences):  # type: ignore[misc]
    __doc__ = "A class for each sequence.\n" + (_Sequences.__doc__ or "").partition("\n")[2]
    _kind = "classify"

    def fit(self, X: Any, y: Any) -> SequenceClassifier:
        rows = sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceClassifier requires y to be passed, but the target y is None")
        y = column_or_1d(y, warn=True)
        check_consistent_length(rows, y)
        if y.dtype.kind == "f":
            assert_all_finite(y, input_name="y")
        _names_or_numbers(y)
        check_classification_targets(y)
        self.classes_, ids = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise UserError(f"y has only one class, {str(self.classes_[0])!r}; there is nothing to tell apart")
        self._train(rows, ids, ids)
        return self

    def predict_proba(self, X: Any) -> Array:
        """(N, classes) in the order of `classes_`."""
        found = np.stack([p.numpy() for p in self._predicted(X, "probabilities")])
        full = np.zeros((len(found), len(self.classes_)), dtype=np.float64)
        full[:, self._ids()] = found  # training may lack a rare class
        return full / full.sum(1, keepdims=True)

    def predict(self, X: Any) -> Array:
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


class SequenceRegressor(RegressorMixin, _Sequences):  # type: ignore[misc]
    __doc__ = "A number, or several, for each sequence.\n" + (_Sequences.__doc__ or "").partition("\n")[2]
    _kind = "regress"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def fit(self, X: Any, y: Any) -> SequenceRegressor:
        rows = sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceRegressor requires y to be passed, but the target y is None")
        y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        check_consistent_length(rows, y)
        self._flat = y.ndim == 1
        self._train(rows, y.reshape(len(y), -1), None)
        return self

    def predict(self, X: Any) -> Array:
        """(N,) or (N, K), as y was."""
        scaled = torch.stack(self._predicted(X, "values"))
        values = np.asarray(self.task_.decode(scaled))
        return values[:, 0] if self._flat else values


class SequenceTagger(_Sequences):
    __doc__ = "A tag for every step of each sequence.\n" + (_Sequences.__doc__ or "").partition("\n")[2]
    _kind = "tag"

    def fit(self, X: Any, y: Any) -> SequenceTagger:
        rows = sequences(self, X, reset=True)
        if y is None:
            raise UserError("SequenceTagger requires y to be passed, but the target y is None")
        check_consistent_length(rows, y)
        y = [_tags_of(tags, number) for number, tags in enumerate(y)]
        for number, (row, tags) in enumerate(zip(rows, y, strict=True)):
            if len(row) != len(tags):
                raise UserError(f"X[{number}] has {len(row)} steps but y[{number}] has {len(tags)} tags")
        _names_or_numbers(tag for tags in y for tag in tags)
        self.classes_, ids = np.unique(np.concatenate([np.asarray(tags) for tags in y]), return_inverse=True)
        ends = np.cumsum([len(tags) for tags in y])
        self._train(rows, [part.tolist() for part in np.split(ids, ends[:-1])], None)
        return self

    def predict(self, X: Any) -> list[list[Any]]:
        """A list of tags for each sequence."""
        found = self._predicted(X, "values")
        names = self.classes_[self._ids()]
        return [names[ids.numpy()].tolist() for ids in found]

    def score(self, X: Any, y: Any) -> float:
        """The share of steps whose tag is right."""
        found = self.predict(X)
        return float(accuracy_score(np.concatenate([np.asarray(list(t)) for t in y]), np.concatenate(found)))


def _tags_of(tags: Any, number: int) -> list[Any]:
    if not isinstance(tags, Iterable):
        raise UserError(f"y[{number}] is {tags!r}; give a list of tags for every sequence, one for each step")
    return list(tags)


def _names_or_numbers(y: Iterable[Any]) -> None:
    """Classes are all texts, or none is: what is missing among them is no class."""
    values = list(y)
    texts = [isinstance(value, str) for value in values]
    if any(texts) and not all(texts):
        wrong = values[texts.index(False)]
        raise UserError(f"y holds texts and {wrong!r}; leave out what is missing, and give classes of one type")
    missing = [v for v in values if v is None or (isinstance(v, (float, np.floating)) and np.isnan(v))]
    if missing:
        raise UserError(f"y holds {missing[0]!r}, which is no class; leave out what is missing")
