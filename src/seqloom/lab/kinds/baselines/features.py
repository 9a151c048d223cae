"""Compute the features of linear baselines: n-grams of a text, values of a series, what two texts have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.text import FIRST_ID, TextCoder
from seqloom.lab.data.task import END, Task, Tokens
from seqloom.lab.files.sealed import JSON
from seqloom.lab.stats.metrics import Array

if TYPE_CHECKING:  # takes long to import
    from scipy.sparse import csr_matrix

Rows = tuple[Array, Array]  # x (B, T) or (B, T, D), lengths (B,)
WORD_ORDERS, CHARACTER_ORDERS = (1, 2), (1, 2, 3, 4)  # lengths of n-grams
MOST_NGRAMS = 500_000
LETTER_ORDERS = (2, 3, 4, 5)  # lengths of n-grams of letters, the marks at both ends of a word included
MOST_LETTER_NGRAMS = 200_000
EDGE = "\x00"  # marks the start and the end of a word
FEWEST_PER_WORD = 2.0  # characters on average; shorter tokens are characters themselves
RESAMPLED_POINTS = 32  # values of each feature, if the series differ in length
MOST_VALUES = 4_000  # series of equal length with at most this many values are used unchanged


class FeatureMap:
    """Features of rows: `fit` sets the attributes in `fitted`, which are arrays; those in `fields` are settings.

    A subclass is found by its `key` when a baseline is loaded; its constructor takes the settings.
    """

    key: ClassVar[str]
    by_key: ClassVar[dict[str, type[FeatureMap]]] = {}
    fitted: ClassVar[tuple[str, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, key: str) -> None:
        super().__init_subclass__()
        cls.key = key
        FeatureMap.by_key[key] = cls

    def fit(self, rows: Iterable[Rows]) -> Any:  # noqa: ANN401  # sparse or dense
        """Fit what the features need; return the (N, columns) features of the rows."""
        raise NotImplementedError

    def __call__(self, x: Array, lengths: Array) -> Any:  # noqa: ANN401  # sparse or dense
        """Return the (B, columns) features of rows."""
        raise NotImplementedError

    def arrays(self) -> dict[str, Tensor]:
        """Return what was fitted."""
        return {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in self.fitted}

    def settings(self) -> dict[str, JSON]:
        """Return what else `build` takes."""
        return {name: getattr(self, name) for name in self.fields}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        """Make the features again from what `arrays` and `settings` returned."""
        features = cls(**settings)
        for name in cls.fitted:
            setattr(features, name, arrays[name].numpy())
        return features


def weigh(counts: csr_matrix, idf: Array | None = None) -> tuple[csr_matrix, Array]:
    """Return TF-IDF features of counts (N, columns) and the weights (columns,), fitted unless they are given."""
    from sklearn.feature_extraction.text import TfidfTransformer

    weighted = TfidfTransformer(sublinear_tf=True)
    if idf is None:
        weighted.fit(counts)
    else:
        weighted.idf_ = idf
    return weighted.transform(counts), weighted.idf_


class Ngrams(FeatureMap, key="n-grams"):
    """TF-IDF of n-grams: of one or two words, or of one to four characters."""

    fitted, fields = ("known", "idf"), ("base", "orders")
    known: Array
    idf: Array

    def __init__(self, base: int, orders: Iterable[int]) -> None:
        self.base, self.orders = base, list(orders)

    @classmethod
    def of(cls, space: Tokens) -> Self:
        """Return the usual n-grams of these tokens."""
        return cls(space.size, CHARACTER_ORDERS if space.unit in ("characters", "bytes") else WORD_ORDERS)

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Choose the n-grams and their weights; return the (N, columns) sparse matrix of the rows."""
        pieces = [self._codes(*part) for part in rows]
        ends = np.cumsum([int(r[-1]) + 1 for r, _ in pieces])  # the rows up to each piece
        row = np.concatenate([r + end - int(r[-1]) - 1 for (r, _), end in zip(pieces, ends, strict=True)])
        code = np.concatenate([c for _, c in pieces])
        row, code = row[code >= 0], code[code >= 0]  # the marks of last rows are not n-grams
        self.known, inverse, counts = np.unique(code, return_inverse=True, return_counts=True)
        frequent = np.argsort(-counts, kind="stable")[:MOST_NGRAMS]
        frequent = np.sort(frequent[counts[frequent] > 1]) if len(counts) > self.base else np.arange(len(counts))
        column = np.full(len(self.known), -1)
        column[frequent] = np.arange(len(frequent))
        self.known = self.known[frequent]
        features, self.idf = weigh(self._matrix(row, column[inverse], int(ends[-1])))
        return features

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        row, code = self._codes(x, lengths)
        at = np.searchsorted(self.known, code).clip(max=len(self.known) - 1)
        return weigh(self._matrix(row, np.where((self.known[at] == code) & (code >= 0), at, -1), len(x)), self.idf)[0]

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


def can_spell(task: Task) -> bool:
    """Return whether the inputs are words whose characters are known."""
    coder = None if task.encoding is None else task.encoding.x
    if not isinstance(coder, TextCoder) or coder.unit not in ("words", "tokens") or not coder.words:
        return False
    return float(np.mean([len(word) for word in coder.words])) >= FEWEST_PER_WORD


class LetterNgrams(FeatureMap, key="letters"):
    """TF-IDF of n-grams inside words, which several forms and spellings share; words outside the vocabulary have none.

    Args:
        spelling: (V, columns) sparse, how often each n-gram occurs in each word of the vocabulary.
    """

    idf: Array  # (columns,) weights

    def __init__(self, spelling: csr_matrix) -> None:
        self.spelling = spelling

    @classmethod
    def of(cls, task: Task) -> Self:
        """Collect the character n-grams of a task's vocabulary; `fit` sets their weights."""
        coder = task.encoding.x if task.encoding is not None else None
        assert isinstance(coder, TextCoder)
        return cls(_spell(coder.words))

    def arrays(self) -> dict[str, Tensor]:
        s = self.spelling
        parts = {"indptr": s.indptr, "indices": s.indices, "counts": s.data, "idf": self.idf}
        return {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}

    def settings(self) -> dict[str, JSON]:
        return {"shape": list(self.spelling.shape)}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        from scipy.sparse import csr_matrix

        parts = tuple(arrays[name].numpy() for name in ("counts", "indices", "indptr"))
        features = cls(csr_matrix(parts, tuple(settings["shape"])))
        features.idf = arrays["idf"].numpy()
        return features

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Keep the n-grams that occur in more than one row; return the (N, columns) features of the rows."""
        from scipy.sparse import vstack

        words = vstack([self._count_words(*part) for part in rows]).tocsr()
        counts = words @ self.spelling
        frequency = np.bincount(counts.indices, minlength=counts.shape[1])
        frequent = np.argsort(-frequency, kind="stable")[:MOST_LETTER_NGRAMS]
        frequent = np.sort(frequent[frequency[frequent] > 1])
        frequent = frequent if len(frequent) else np.arange(min(1, counts.shape[1]))
        self.spelling = self.spelling[:, frequent]
        features, self.idf = weigh(counts[:, frequent])
        return features

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        return weigh(self._count_words(x, lengths) @ self.spelling, self.idf)[0]

    def _count_words(self, x: Array, lengths: Array) -> csr_matrix:
        """Return (B, V): how often each word occurs in each row."""
        from scipy.sparse import csr_matrix

        row, step = np.nonzero(np.arange(x.shape[1]) < lengths[:, None])
        shape = (len(x), self.spelling.shape[0])
        return csr_matrix((np.ones(len(row)), (row, x[row, step])), shape)


def _spell(words: Sequence[str]) -> csr_matrix:
    """Return (V, columns): the n-grams of each word; the special tokens, which come first, have none."""
    from scipy.sparse import csr_matrix

    known: dict[str, int] = {}
    rows, columns = [], []
    for number, word in enumerate(words, FIRST_ID):
        text = f"{EDGE}{word}{EDGE}"
        grams = [text[i : i + n] for n in LETTER_ORDERS for i in range(len(text) - n + 1)]
        rows += [number] * len(grams)
        columns += [known.setdefault(gram, len(known)) for gram in grams]
    shape = (FIRST_ID + len(words), max(1, len(known)))
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape)


class WordsAndLetters(FeatureMap, key="words and letters"):
    """Features of a text: TF-IDF of its word n-grams and of the character n-grams inside its words."""

    def __init__(self, words: Ngrams, letters: LetterNgrams) -> None:
        self.parts: dict[str, Ngrams | LetterNgrams] = {"words": words, "letters": letters}

    @classmethod
    def of(cls, task: Task) -> Self:
        """Return the usual n-grams of a task's tokens and of their characters."""
        assert isinstance(task.input, Tokens)
        return cls(Ngrams.of(task.input), LetterNgrams.of(task))

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        kept = list(rows)
        return join_sparse([part.fit(kept) for part in self.parts.values()])

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        return join_sparse([part(x, lengths) for part in self.parts.values()])

    def arrays(self) -> dict[str, Tensor]:
        return {f"{name}.{key}": array for name, part in self.parts.items() for key, array in part.arrays().items()}

    def settings(self) -> dict[str, JSON]:
        return {name: part.settings() for name, part in self.parts.items()}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        words = Ngrams.build(select(arrays, "words."), settings["words"])
        return cls(words, LetterNgrams.build(select(arrays, "letters."), settings["letters"]))


def select(arrays: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def join_sparse(parts: Sequence[Any]) -> csr_matrix:
    """Join features (N, columns) as columns of one sparse matrix."""
    from scipy.sparse import csr_matrix, hstack

    return csr_matrix(hstack(parts))


class SeriesFeatures(FeatureMap, key="series"):
    """Mean, spread, extremes, first, last and roughness of each feature, and the values themselves."""

    fitted, fields = ("mean", "scale"), ("points",)
    mean: Array
    scale: Array

    def __init__(self, points: int = 0) -> None:
        self.points = int(points)

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

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        features = super().build(arrays, settings)
        if features.mean.ndim != 1 or features.mean.shape != features.scale.shape:
            found = f"{features.mean.shape} and {features.scale.shape}"
            raise UserError(f"mean and scale of the features must be vectors of one length, got {found}")
        return features

    def _unscaled(self, x: Array, lengths: Array) -> Array:
        return np.stack([self._describe(row[: max(1, n)]) for row, n in zip(x, lengths, strict=True)])

    def _describe(self, x: Array) -> Array:
        """Map (T, D) to features; a series of another length is interpolated at evenly spaced points."""
        x = x.astype(np.float64)  # of standardised series, means are smaller than the rounding errors of float32
        rough = np.abs(np.diff(x, axis=0)).mean(0) if len(x) > 1 else np.zeros(x.shape[1])
        summary = [x.mean(0), x.std(0), x.min(0), x.max(0), x[0], x[-1], rough]
        at = np.linspace(0, len(x) - 1, self.points)
        low = np.floor(at).astype(int)
        high, share = np.minimum(low + 1, len(x) - 1), (at - low)[:, None]
        return np.concatenate([*summary, ((1 - share) * x[low] + share * x[high]).ravel()])


class Overlap(FeatureMap, key="overlap"):
    """The shares of tokens and of neighbouring tokens that two texts have in common, and how their lengths differ.

    They know neither the words nor their order.
    """

    def fit(self, rows: Iterable[Rows]) -> Array:
        return np.concatenate([self(*part) for part in rows])

    def __call__(self, x: Array, lengths: Array) -> Array:
        return np.array([_compare(row[:n].tolist()) for row, n in zip(x, lengths, strict=True)])


def _compare(ids: list[int]) -> list[float]:
    cut = ids.index(END) if END in ids else len(ids)
    a, b = ids[:cut], ids[cut + 1 :]
    shares = [share for s, t in ((set(a), set(b)), (set(pairwise(a)), set(pairwise(b)))) for share in _shares(s, t)]
    return [*shares, abs(len(a) - len(b)) / max(1, len(a), len(b)), float(a == b)]


def _shares(s: set[Any], t: set[Any]) -> tuple[float, float, float]:
    """Return the size of the intersection as a share of the union, of s and of t."""
    common = len(s & t)
    return common / max(1, len(s | t)), common / max(1, len(s)), common / max(1, len(t))
