"""TF-IDF of the character n-grams of words: parts of words that several forms and spellings share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.data.coders.text import FIRST_ID, TextCoder
from seqloom.lab.data.task import Task
from seqloom.lab.files.sealed import JSON
from seqloom.lab.stats.metrics import Array

if TYPE_CHECKING:  # takes long to import
    from scipy.sparse import csr_matrix

Rows = tuple[Array, Array]  # x (B, T), lengths (B,)
ORDERS = (2, 3, 4, 5)  # lengths of n-grams, the marks at both ends of a word included
EDGE = "\x00"  # marks the start and the end of a word
MOST_NGRAMS = 200_000
FEWEST_PER_WORD = 2.0  # characters on average; shorter tokens are characters themselves


def can_spell(task: Task) -> bool:
    """Return whether the inputs are words whose characters are known."""
    coder = None if task.encoding is None else task.encoding.x
    if not isinstance(coder, TextCoder) or coder.unit not in ("words", "tokens") or not coder.words:
        return False
    return float(np.mean([len(word) for word in coder.words])) >= FEWEST_PER_WORD


class LetterNgrams:
    """TF-IDF of n-grams inside words; words outside the vocabulary have none.

    Args:
        spelling: (V, columns) sparse, how often each n-gram occurs in each word of the vocabulary.
        idf: (columns,) weights.
    """

    def __init__(self, spelling: csr_matrix, idf: Array | None = None) -> None:
        from sklearn.feature_extraction.text import TfidfTransformer

        self.spelling, self.weighted = spelling, TfidfTransformer(sublinear_tf=True)
        if idf is not None:
            self.weighted.idf_ = idf

    @classmethod
    def of(cls, task: Task) -> Self:
        """Collect the character n-grams of a task's vocabulary; `fit` sets their weights."""
        coder = task.encoding.x if task.encoding is not None else None
        assert isinstance(coder, TextCoder)
        return cls(_spell(coder.words))

    def fit(self, rows: Iterable[Rows]) -> csr_matrix:
        """Keep the n-grams that occur in more than one row, at most 200,000, and return the (N, columns) features."""
        from scipy.sparse import vstack

        words = vstack([self._count_words(*part) for part in rows]).tocsr()
        counts = words @ self.spelling
        frequency = np.bincount(counts.indices, minlength=counts.shape[1])
        frequent = np.argsort(-frequency, kind="stable")[:MOST_NGRAMS]
        frequent = np.sort(frequent[frequency[frequent] > 1])
        frequent = frequent if len(frequent) else np.arange(min(1, counts.shape[1]))
        self.spelling = self.spelling[:, frequent]
        return self.weighted.fit_transform(counts[:, frequent])

    def __call__(self, x: Array, lengths: Array) -> csr_matrix:
        return self.weighted.transform(self._count_words(x, lengths) @ self.spelling)

    def _count_words(self, x: Array, lengths: Array) -> csr_matrix:
        """Return (B, V): how often each word occurs in each row."""
        from scipy.sparse import csr_matrix

        row, step = np.nonzero(np.arange(x.shape[1]) < lengths[:, None])
        shape = (len(x), self.spelling.shape[0])
        return csr_matrix((np.ones(len(row)), (row, x[row, step])), shape)

    def arrays(self) -> dict[str, Tensor]:
        parts = {"indptr": self.spelling.indptr, "indices": self.spelling.indices, "counts": self.spelling.data}
        arrays = {name: torch.from_numpy(np.ascontiguousarray(part)) for name, part in parts.items()}
        return arrays | {"idf": torch.from_numpy(self.weighted.idf_)}

    def settings(self) -> dict[str, JSON]:
        return {"shape": list(self.spelling.shape)}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        from scipy.sparse import csr_matrix

        parts = tuple(arrays[name].numpy() for name in ("counts", "indices", "indptr"))
        return cls(csr_matrix(parts, tuple(settings["shape"])), arrays["idf"].numpy())


def _spell(words: Sequence[str]) -> csr_matrix:
    """Return (V, columns): the n-grams of each word; the special tokens, which come first, have none."""
    from scipy.sparse import csr_matrix

    known: dict[str, int] = {}
    rows, columns = [], []
    for number, word in enumerate(words, FIRST_ID):
        text = f"{EDGE}{word}{EDGE}"
        grams = [text[i : i + n] for n in ORDERS for i in range(len(text) - n + 1)]
        rows += [number] * len(grams)
        columns += [known.setdefault(gram, len(known)) for gram in grams]
    shape = (FIRST_ID + len(words), max(1, len(known)))
    return csr_matrix((np.ones(len(rows)), (rows, columns)), shape)
