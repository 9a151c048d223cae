"""Linear baselines of scikit-learn over n-grams of a text, or over the values and a summary of a series."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.files.sealed import JSON
from seqloom.lab.kinds.baselines.letters import LetterNgrams
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.stats.class_metrics import macro_f1_of_labels
from seqloom.lab.stats.metrics import Array

if TYPE_CHECKING:  # takes long to import
    from scipy.sparse import csr_matrix

Rows = tuple[Array, Array]  # x (B, T) or (B, T, D), lengths (B,)
WORD_ORDERS, CHARACTER_ORDERS = (1, 2), (1, 2, 3, 4)  # lengths of n-grams
MOST_NGRAMS = 500_000
RESAMPLED_POINTS = 32  # values of each feature, if the series differ in length
MOST_VALUES = 4_000  # series of equal length with at most this many values are used unchanged
SERIES_C, TEXT_C = (0.01, 0.1, 1.0), (1.0, 10.0)  # inverse regularisation strengths of scikit-learn
LABELS_C = (1.0, 10.0, 100.0)  # rare labels need less regularisation to be predicted at all
RIDGE_C = (1e-4, 1e-3, 1e-2, 0.1, 1.0)  # 1 / alpha
SOLVER_ITERATIONS = 100


class Ngrams:
    """TF-IDF of n-grams: of one or two words, or of one to four characters."""

    def __init__(self, base: int, orders: Iterable[int]) -> None:
        self.base, self.orders = base, tuple(orders)

    @classmethod
    def of(cls, space: Tokens) -> Self:
        """Return the usual n-grams of these tokens."""
        return cls(space.size, CHARACTER_ORDERS if space.unit in ("characters", "bytes") else WORD_ORDERS)

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Choose the n-grams and their weights; return the (N, columns) sparse matrix of the rows."""
        from sklearn.feature_extraction.text import TfidfTransformer

        pieces = [self._codes(*part) for part in rows]
        row = np.concatenate([r + start for (r, _), start in zip(pieces, _starts(pieces), strict=True)])
        code = np.concatenate([c for _, c in pieces])
        self.known, inverse, counts = np.unique(code, return_inverse=True, return_counts=True)
        n = sum(int(r[-1]) + 1 for r, _ in pieces)
        frequent = np.argsort(-counts, kind="stable")[:MOST_NGRAMS]
        frequent = np.sort(frequent[counts[frequent] > 1]) if len(counts) > self.base else np.arange(len(counts))
        column = np.full(len(self.known), -1)
        column[frequent] = np.arange(len(frequent))
        self.known = self.known[frequent]
        self.weighted = TfidfTransformer(sublinear_tf=True)
        return self.weighted.fit_transform(self._matrix(row, column[inverse], n))

    def arrays(self) -> dict[str, Tensor]:
        return {"known": torch.from_numpy(self.known), "idf": torch.from_numpy(self.weighted.idf_)}

    def settings(self) -> dict[str, JSON]:
        return {"base": self.base, "orders": list(self.orders)}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        from sklearn.feature_extraction.text import TfidfTransformer

        features = cls(**settings)
        features.known, features.weighted = arrays["known"].numpy(), TfidfTransformer(sublinear_tf=True)
        features.weighted.idf_ = arrays["idf"].numpy()
        return features

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


class WordsAndLetters:
    """Features of a text: TF-IDF of its word n-grams and of the character n-grams inside its words."""

    def __init__(self, words: Ngrams, letters: LetterNgrams) -> None:
        self.parts: dict[str, Ngrams | LetterNgrams] = {"words": words, "letters": letters}

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the usual n-grams of a task's tokens and of their characters."""
        assert isinstance(task.input, Tokens)
        return cls(Ngrams.of(task.input), LetterNgrams.of(task))

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Fit both; return the (N, columns) sparse matrix of the rows."""
        kept = list(rows)
        return _join_sparse([part.fit(kept) for part in self.parts.values()])

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        return _join_sparse([part(x, lengths) for part in self.parts.values()])

    def arrays(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": array for name, part in self.parts.items() for key, array in part.arrays().items()}

    def settings(self) -> dict[str, JSON]:
        return {name: part.settings() for name, part in self.parts.items()}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        own = {
            name: {key.removeprefix(f"{name}."): array for key, array in arrays.items() if key.startswith(f"{name}.")}
            for name in ("words", "letters")
        }
        words, letters = (
            Ngrams.build(own["words"], settings["words"]),
            LetterNgrams.build(own["letters"], settings["letters"]),
        )
        return cls(words, letters)


def _join_sparse(parts: Sequence[Any]) -> csr_matrix:
    from scipy.sparse import csr_matrix, hstack

    return csr_matrix(hstack(parts))


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
        scaler = StandardScaler()
        features = scaler.fit_transform(np.concatenate([self._unscaled(*part) for part in parts]))
        self.mean, self.scale = scaler.mean_, scaler.scale_
        return features

    def __call__(self, x: Array, lengths: Array) -> Array:
        return (self._unscaled(x, lengths) - self.mean) / self.scale

    def arrays(self) -> dict[str, Tensor]:
        return {"mean": torch.from_numpy(self.mean), "scale": torch.from_numpy(self.scale)}

    def settings(self) -> dict[str, JSON]:
        return {"points": self.points}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        features = cls()
        features.points = int(settings["points"])
        features.mean, features.scale = arrays["mean"].numpy(), arrays["scale"].numpy()
        if features.mean.ndim != 1 or features.mean.shape != features.scale.shape:
            found = f"{features.mean.shape} and {features.scale.shape}"
            raise UserError(f"mean and scale of the features must be vectors of one length, got {found}")
        return features

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


class FeatureMap(Protocol):
    """What a linear baseline computes from rows; `FEATURES` has the classes, which also have `build`."""

    def fit(self, rows: Iterable[Rows]) -> Any:  # noqa: ANN401  # sparse or dense
        """Fit what the features need; return the (N, columns) features of the rows."""

    def __call__(self, x: Array, lengths: Array) -> Any:  # noqa: ANN401  # sparse or dense
        """Return the (B, columns) features of rows."""

    def arrays(self) -> dict[str, Tensor]:
        """Return what was fitted."""

    def settings(self) -> dict[str, JSON]:
        """Return what else `build` takes."""


FEATURES: dict[str, Any] = {
    "n-grams": Ngrams,
    "words and letters": WordsAndLetters,
    "letters": LetterNgrams,  # of earlier runs
    "series": SeriesFeatures,
}
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
        super().__init__(W.numel() + b.numel())
        self.features, self.link, self.classes, self.outputs = features, link, classes, outputs
        self.attributes = attributes
        self.register_buffer("W", W)
        self.register_buffer("b", b)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        f = _extract(self.features, x.cpu().numpy(), lengths.cpu().numpy(), self.attributes)
        z = torch.from_numpy(np.asarray(f @ self.W.cpu().numpy().T.astype(np.float64))) + self.b.cpu()
        if self.classes is None:
            return z.float().to(x.device)
        if len(self.b) == 1:
            z = torch.cat([torch.zeros_like(z), z], 1)
        if self.link == "one against the rest" and len(self.b) > 1:
            p = z.sigmoid()
            p = p / p.sum(1, keepdim=True)
        else:
            p = z.softmax(1)
        scores = torch.full((len(x), self.outputs), ABSENT_SCORE, dtype=torch.float64)
        scores[:, self.classes] = p.clamp(min=1e-13).log()
        return scores.float().to(x.device)

    def arrays(self) -> dict[str, Tensor]:
        return {"W": self.W, "b": self.b, **{f"features.{k}": v for k, v in self.features.arrays().items()}}

    def settings(self) -> dict[str, JSON]:
        name = next(name for name, kind in FEATURES.items() if isinstance(self.features, kind))
        classes: JSON = None if self.classes is None else list(self.classes)
        features: JSON = {"name": name, **self.features.settings()}
        common: dict[str, JSON] = {"outputs": self.outputs, "attributes": self.attributes, "features": features}
        return {"link": self.link, "classes": classes, **common}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        options = dict(settings)
        described = dict(options.pop("features"))
        own = {name.removeprefix("features."): v for name, v in arrays.items() if name.startswith("features.")}
        features = FEATURES[described.pop("name")].build(own, described)
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
        task: the data.
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


def fit_labels(task: Task, features: FeatureMap | None = None) -> ForTask:
    """Fit a logistic regression for each label of a multi-label task, independent of the others.

    Args:
        task: the data.
        features: as in `fit_logistic`.
    """
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


def fit_labels_with_letters(task: Task) -> ForTask:
    """Fit a logistic regression for each label to n-grams of words and of their characters."""
    return fit_labels(task, WordsAndLetters.of(task))


def fit_ridge_with_letters(task: Task) -> ForTask:
    """Fit a ridge regression to n-grams of words and of their characters."""
    return fit_ridge(task, WordsAndLetters.of(task))


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
        assert batch.y is not None
        keep = batch.y >= 0 if task.target.as_target == "class" else torch.ones(len(batch), dtype=torch.bool)
        rows.append((batch.x[keep].numpy(), batch.lengths[keep].numpy()))
        ys.append(batch.y[keep].numpy())
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
        return _join_sparse([features, csr_matrix(attributes)])
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
