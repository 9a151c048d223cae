"""Find texts that are equal or nearly equal, by MinHash over shingles of three words.

Broder 1997, On the resemblance and containment of documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from seqloom.lab.data.coders.text import WORDS

Array = np.ndarray[Any, Any]
BANDS, ROWS = 4, 2  # two texts are compared if both hashes of a band agree
MIN_AGREEING = 6  # of BANDS * ROWS hashes: a Jaccard similarity of about 0.75
MIN_WORDS = 8  # shorter texts are duplicates only if they are equal
SHINGLE = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)  # odd multipliers


def cluster_texts(chunks: Iterable[pl.Series]) -> Array:
    """Return (N,) cluster numbers: texts that are nearly equal have the same number."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    hashes, long, signatures, n = [], [], [], 0
    for texts in chunks:
        rows, signature = _sign_texts(texts)
        hashes.append(hash_texts(texts))
        long.append(rows + n)
        signatures.append(signature)
        n += len(texts)
    rows, sign, whole = np.concatenate(long), np.concatenate(signatures), np.concatenate(hashes)
    del long, signatures, hashes  # large for millions of texts
    edges = [np.stack(_pair_equal(whole))]
    for band in range(BANDS):
        key = sign[:, ROWS * band].astype(np.uint64) << np.uint64(32) | sign[:, ROWS * band + 1]
        first, second = _pair_equal(key)
        near = (sign[first] == sign[second]).sum(1) >= MIN_AGREEING
        edges.append(np.stack([rows[first[near]], rows[second[near]]]))
    one, other = np.concatenate(edges, 1)
    graph = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(n, n))
    return connected_components(graph, directed=False)[1]


def _pair_equal(keys: Array) -> tuple[Array, Array]:
    """Return (E,), (E,) pairs of positions with equal keys: the first position of a key, and each later one."""
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    partner = first[group]
    later = np.flatnonzero(partner != np.arange(len(keys)))
    return partner[later], later


def hash_texts(texts: pl.Series) -> Array:
    """Return (N,) a hash of each text that ignores case, punctuation and spaces."""
    letters = texts.fill_null("").str.to_lowercase().str.replace_all(r"[^\p{L}\p{N}]+", "")
    return letters.hash(0).to_numpy()


def _sign_texts(texts: pl.Series) -> tuple[Array, Array]:
    """Return the indices (L,) of texts that are long enough, and their MinHashes (L, BANDS * ROWS)."""
    words = texts.fill_null("").str.to_lowercase().str.extract_all(WORDS)
    lengths = words.list.len().to_numpy().astype(np.int64)
    long = np.flatnonzero(lengths >= MIN_WORDS)
    signatures = np.empty((len(long), BANDS * ROWS), dtype=np.uint32)
    if not len(long):
        return long, signatures
    h = words.explode(empty_as_null=False).hash(1).to_numpy()  # (words of all texts,)
    s = h[:-2] * np.uint64(SHINGLE[0]) + h[1:-1] * np.uint64(SHINGLE[1]) + h[2:] * np.uint64(SHINGLE[2])
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    # A shingle must not reach into the next text: [start, end - 2) of each text is every other segment.
    bounds = np.stack([starts[long], starts[long] + lengths[long] - 2], 1).ravel()
    random = np.random.default_rng(0).integers(1, 1 << 61, (BANDS * ROWS, 2), dtype=np.uint64)
    mixed = np.zeros(len(s) + 1, dtype=np.uint64)  # one more, so that the last bound is a valid index
    for k, (a, b) in enumerate(random):
        np.multiply(s, a | np.uint64(1), out=mixed[:-1])
        np.add(mixed, b, out=mixed)
        signatures[:, k] = np.minimum.reduceat(mixed, bounds)[::2] >> np.uint64(32)
    return long, signatures
