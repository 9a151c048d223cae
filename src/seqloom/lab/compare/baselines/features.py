"""Features of a whole sequence: n-grams of ids, or values and summaries of a series."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from seqloom.lab.data.task import Tokens
from seqloom.lab.stats.metrics import Array

Rows = tuple[Array, Array]  # x (B, T) or (B, T, D), lengths (B,)
WORDS, LETTERS = (1, 2), (1, 2, 3, 4)  # lengths of n-grams
MOST = 500_000  # different n-grams
POINTS = 32  # to which a series is brought where not all are as long
WIDE = 4_000  # values of a series that are taken as they are


class Ngrams:
    """TF-IDF of words and pairs of words, or of up to four characters in a row."""

    def __init__(self, space: Tokens) -> None:
        self.base = space.size
        self.orders = LETTERS if space.unit in ("characters", "bytes") else WORDS

    def fit(self, rows: Iterable[Rows]) -> Any:
        from sklearn.feature_extraction.text import TfidfTransformer

        pieces = [self._codes(*part) for part in rows]
        row = np.concatenate([r + start for (r, _), start in zip(pieces, _starts(pieces), strict=True)])
        code = np.concatenate([c for _, c in pieces])
        self.known, inverse, counts = np.unique(code, return_inverse=True, return_counts=True)
        self.n = sum(int(r[-1]) + 1 for r, _ in pieces)
        often = np.argsort(-counts, kind="stable")[:MOST]
        often = np.sort(often[counts[often] > 1]) if len(counts) > self.base else np.arange(len(counts))
        column = np.full(len(self.known), -1)
        column[often] = np.arange(len(often))
        self.known = self.known[often]
        self.weighted = TfidfTransformer(sublinear_tf=True)
        return self.weighted.fit_transform(self._matrix(row, column[inverse], self.n))

    def __call__(self, x: Array, lengths: Array) -> Any:
        row, code = self._codes(x, lengths)
        at = np.searchsorted(self.known, code).clip(max=len(self.known) - 1)
        return self.weighted.transform(self._matrix(row, np.where(self.known[at] == code, at, -1), len(x)))

    def _codes(self, x: Array, lengths: Array) -> Rows:
        """The row and a number for each n-gram; the last entry stands in the last row and is none."""
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

    def _matrix(self, row: Array, column: Array, n: int) -> Any:
        from scipy.sparse import csr_matrix

        keep = column >= 0
        shape = (n, max(1, len(self.known)))
        return csr_matrix((np.ones(int(keep.sum())), (row[keep], column[keep])), shape)


def _starts(pieces: list[Rows]) -> list[int]:
    return [0, *np.cumsum([int(r[-1]) + 1 for r, _ in pieces])[:-1].tolist()]


class Series:
    """Mean, spread, ends, first, last and roughness of each feature, and the values themselves."""

    def fit(self, rows: Iterable[Rows]) -> Array:
        from sklearn.preprocessing import StandardScaler

        parts = list(rows)
        lengths = np.concatenate([n for _, n in parts])
        T, D = int(lengths.max()), parts[0][0].shape[2]
        same = bool((lengths == T).all()) and T * D <= WIDE
        self.points = T if same else max(1, min(POINTS, WIDE // D))
        self.scale = StandardScaler()
        return self.scale.fit_transform(np.concatenate([self._raw(*part) for part in parts]))

    def __call__(self, x: Array, lengths: Array) -> Array:
        return self.scale.transform(self._raw(x, lengths))

    def _raw(self, x: Array, lengths: Array) -> Array:
        return np.stack([self._one(row[: max(1, n)]) for row, n in zip(x, lengths, strict=True)])

    def _one(self, x: Array) -> Array:
        """(T, D) -> features; where the series has another length, its values at points spread evenly over it."""
        rough = np.abs(np.diff(x, axis=0)).mean(0) if len(x) > 1 else np.zeros(x.shape[1])
        summary = [x.mean(0), x.std(0), x.min(0), x.max(0), x[0], x[-1], rough]
        at = np.linspace(0, len(x) - 1, self.points)
        low = np.floor(at).astype(int)
        high, share = np.minimum(low + 1, len(x) - 1), (at - low)[:, None]
        return np.concatenate([*summary, ((1 - share) * x[low] + share * x[high]).ravel()])
