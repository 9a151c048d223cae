"""A sample as a table with one row an example, or one row a step, as linear models and nearest neighbours need it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from seqloom.lab.advise.sample import Array, Sample
from seqloom.lab.compare.baselines.linear import Ngrams, SeriesFeatures
from seqloom.lab.data.task import Tokens

WINDOW = (-2, -1, 0, 1, 2)
TOGETHER = 256  # rows that are padded to one length


def table(sample: Sample) -> Any:
    """(N, columns): tf-idf of n-grams, or the values and the summary of a series."""
    space = sample.task.input
    return (Ngrams(space) if isinstance(space, Tokens) else SeriesFeatures()).fit(_padded(sample))


def bag(sample: Sample) -> Any:
    """(N, columns): tf-idf of single tokens, whatever their order."""
    assert isinstance(sample.task.input, Tokens)
    return Ngrams(sample.task.input, orders=(1,)).fit(_padded(sample))


def _padded(sample: Sample) -> Iterator[tuple[Array, Array]]:
    for start in range(0, len(sample), TOGETHER):
        batch = sample.batch(range(start, min(start + TOGETHER, len(sample))))
        yield batch.x.numpy(), batch.lengths.numpy()


def windows(sample: Sample) -> tuple[Any, Array, Array]:
    """(steps, columns) of the tokens or numbers around each step, the target of each, and its example."""
    from scipy.sparse import csr_matrix

    values, starts = sample.flat()
    lengths = sample.lengths
    row = np.repeat(np.arange(len(sample)), lengths)
    here = np.arange(len(values))
    near = [(here + k >= starts[row]) & (here + k < starts[row] + lengths[row]) for k in WINDOW]
    at = [np.where(ok, here + k, 0) for ok, k in zip(near, WINDOW, strict=True)]
    y = np.concatenate([e.y.numpy() for e in sample.examples])
    if values.ndim > 1:
        return np.concatenate([values[a] * ok[:, None] for a, ok in zip(at, near, strict=True)], 1), y, row
    size = sample.task.input.size
    columns = np.stack([np.where(ok, values[a], 0) + size * i for i, (a, ok) in enumerate(zip(at, near, strict=True))])
    ones = np.ones(columns.size, np.float32), columns.T.ravel(), np.arange(0, columns.size + 1, len(WINDOW))
    return csr_matrix(ones, (len(values), size * len(WINDOW))), y, row
