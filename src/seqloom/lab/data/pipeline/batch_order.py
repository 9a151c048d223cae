"""Which examples make a batch: like lengths together, in an order that a seed decides."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
POOL = 50  # batches that are sorted by length together


def order(lengths: Array, batch: int | None, tokens: int | None, seed: tuple[int, int] | None) -> list[Array]:
    """Batches of positions in `lengths`. Without a seed: from the shortest to the longest."""
    n = len(lengths)
    if seed is None:
        sequence = np.argsort(lengths, kind="stable")
        return _cut(sequence, lengths, batch, tokens)
    random = np.random.default_rng([s % (1 << 32) for s in seed])
    sequence = random.permutation(n)
    usual = batch or max(1, int((tokens or 1) / max(1.0, float(lengths.mean()) if n else 1.0)))
    pool = np.arange(n) // (POOL * usual)
    sequence = sequence[np.lexsort((lengths[sequence], pool))]
    batches = _cut(sequence, lengths, batch, tokens)
    return [batches[i] for i in random.permutation(len(batches))]


def _cut(sequence: Array, lengths: Array, batch: int | None, tokens: int | None) -> list[Array]:
    if batch is not None:
        return [sequence[i : i + batch] for i in range(0, len(sequence), batch)]
    cuts, start, longest = [0], 0, 0
    for i, length in enumerate(lengths[sequence].tolist()):
        longest = max(longest, length)
        if i > start and longest * (i - start + 1) > (tokens or 1):
            cuts.append(i)
            start, longest = i, length
    return [sequence[a:b] for a, b in zip(cuts, [*cuts[1:], len(sequence)], strict=True) if b > a]
