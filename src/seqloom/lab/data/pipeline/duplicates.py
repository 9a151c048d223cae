"""Texts that are the same, or nearly: MinHash over shingles of three words.

Broder 1997, On the resemblance and containment of documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.text import WORDS

Array = np.ndarray[Any, Any]
BANDS, ROWS = 4, 2  # two texts meet where both hashes of one band agree
AGREE = 6  # of BANDS * ROWS hashes: a Jaccard similarity of about 0.75
SHORT = 8  # with fewer words only equal texts count
SHINGLE = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd multipliers


def clusters(chunks: Iterable[pl.Series]) -> Array:
    """(N,) the same number for texts that belong together."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    wholes, long, signs, n = [], [], [], 0
    for texts in chunks:
        rows, sign = _signatures(texts)
        wholes.append(equal(texts))
        long.append(rows + n)
        signs.append(sign)
        n += len(texts)
    rows, sign, whole = np.concatenate(long), np.concatenate(signs), np.concatenate(wholes)  # (L,), (L, BANDS * ROWS)
    del long, signs, wholes  # of millions of texts, each is worth its memory
    edges = [np.stack(_meet(whole))]
    for band in range(BANDS):
        first, second = _meet(sign[:, ROWS * band].astype(np.uint64) << np.uint64(32) | sign[:, ROWS * band + 1])
        near = (sign[first] == sign[second]).sum(1) >= AGREE
        edges.append(np.stack([rows[first[near]], rows[second[near]]]))
    one, other = np.concatenate(edges, 1)
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(n, n))
    return connected_components(graph, directed=False)[1]


def _meet(keys: Array) -> tuple[Array, Array]:
    """(E,), (E,) pairs of places that hold the same key: the first with it, and each later one."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    partner = first[group]
    later = np.flatnonzero(partner != np.arange(len(keys)))
    return partner[later], later


def equal(texts: pl.Series) -> Array:
    """(N,) a hash of each text without case, marks and spaces."""
    return _letters(texts).hash(0).to_numpy()


def _letters(texts: pl.Series) -> pl.Series:
    return texts.fill_null("").str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", "")


def _signatures(texts: pl.Series) -> tuple[Array, Array]:
    """Which texts are long enough (L,), and their MinHashes (L, BANDS * ROWS)."""
    words = texts.fill_null("").str.to_lowercase().str.extract_all(WORDS)
    lengths = words.list.len().to_numpy().astype(np.int64)
    long = np.flatnonzero(lengths >= SHORT)
    signs = np.empty((len(long), BANDS * ROWS), dtype=np.uint32)
    if not len(long):
        return long, signs
    h = words.explode(empty_as_null=False).hash(1).to_numpy()  # every word of every text
    s = h[:-2] * np.uint64(SHINGLE[0]) + h[1:-1] * np.uint64(SHINGLE[1]) + h[2:] * np.uint64(SHINGLE[2])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    # a shingle may not reach into the next text: [start, end - 2) of each, every other segment
    bounds = np.stack([starts[long], starts[long] + lengths[long] - 2], 1).ravel()
    random = np.random.default_rng(0).integers(1, 1 << 61, (BANDS * ROWS, 2), dtype=np.uint64)
    mixed = np.zeros(len(s) + 1, dtype=np.uint64)  # one more, so that the last bound is inside
    for k, (a, b) in enumerate(random):
        np.multiply(s, a | np.uint64(1), out=mixed[:-1])
        np.add(mixed, b, out=mixed)
        signs[:, k] = np.minimum.reduceat(mixed, bounds)[::2] >> np.uint64(32)
    return long, signs
