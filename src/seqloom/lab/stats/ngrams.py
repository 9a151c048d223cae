"""BLEU and chrF of a corpus from the n-gram counts of its rows, as sacrebleu computes them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
NGRAMS = 4  # longest n-gram of words in BLEU
CHRF_ORDER, CHRF_BETA = 6, 2.0  # longest n-gram of characters, weight of the recall (Popovic 2015)


def compute_bleu(sums: Array) -> Array:
    """Return the corpus BLEU, 0 to 100, of sums (..., 10) over rows, as sacrebleu does.

    The sums are the length of the translations, that of the references, and the matches and totals of 1- to 4-grams.
    It is 0 if an order has no match.
    """
    written, reference, matches, totals = sums[..., 0], sums[..., 1], sums[..., 2 : 2 + NGRAMS], sums[..., 2 + NGRAMS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.exp(np.log(matches / totals).mean(-1))
        brevity = np.where(written < reference, np.exp(1 - reference / written), 1.0)
    return np.where((matches > 0).all(-1), 100 * brevity * precision, 0.0)


def count_characters(reference: str, output: str) -> list[int]:
    """Return for n = 1 to 6 the n-grams of the output, those of the reference and their matches, 18 numbers.

    Blanks do not count.
    """
    counts = []
    true, written = ("".join(text.split()) for text in (reference, output))
    for n in range(1, CHRF_ORDER + 1):
        a, b = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in (true, written))
        counts += [b.total(), a.total(), (a & b).total()]
    return counts


def compute_chrf(sums: Array) -> Array:
    """Return the corpus chrF, 0 to 100, of sums (..., 18) of `count_characters` over rows."""
    written, true, matches = (sums[..., k::3] for k in range(3))
    known = (written > 0) & (true > 0)
    orders = np.maximum(known.sum(-1), 1)
    precision = (np.where(known, matches, 0) / np.maximum(written, 1)).sum(-1) / orders
    recall = (np.where(known, matches, 0) / np.maximum(true, 1)).sum(-1) / orders
    both = CHRF_BETA**2 * precision + recall
    return 100 * (1 + CHRF_BETA**2) * precision * recall / np.where(both > 0, both, 1.0)
