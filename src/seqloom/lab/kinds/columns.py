"""Columns of scores that several kinds share: errors of values, edits of texts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from seqloom.lab.data.task import SPECIALS, UNKNOWN
from seqloom.lab.stats.metrics import Array

Columns = dict[str, Array]


def to_array(tensor: Tensor) -> Array:
    """Return a tensor as float64 on the CPU."""
    return tensor.double().cpu().numpy()


def sum_errors(off: Array) -> Columns:
    """Sum the squared and absolute errors (B, n) of each row; NaN is left out."""
    known = ~np.isnan(off)
    off = np.where(known, off, 0)
    return {"square": (off**2).sum(1), "absolute": np.abs(off).sum(1), "values": known.sum(1).astype(np.float64)}


def count_edits(true: str, predicted: str) -> list[int]:
    """Return the edits and the length of the true text, in characters and in words."""
    from jiwer import process_characters, process_words

    row: list[int] = []
    for one in (process_characters(true, predicted), process_words(true, predicted)):
        row += [one.substitutions + one.deletions + one.insertions, one.hits + one.substitutions + one.deletions]
    return row


def name_edits(rows: list[list[int]]) -> Columns:
    """Return the rows of `count_edits` as columns."""
    names = ("letter_edits", "letters", "word_edits", "words")
    return dict(zip(names, np.array(rows, dtype=np.float64).T, strict=True))


def join_words(decoded: str | Iterable[object]) -> str:
    """Return a decoded text, or decoded tokens separated by blanks."""
    return decoded if isinstance(decoded, str) else " ".join(map(str, decoded))


def mark_unknown(decoded: str | Iterable[object], mark: str) -> str:
    """Return a decoded text with `mark` in place of unknown words."""
    return join_words(decoded).replace(SPECIALS[UNKNOWN], mark)
