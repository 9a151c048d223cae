"""Synthetic tasks with known facts."""

import numpy as np

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.sample import draw_sample
from seqloom.lab.data.memory import MemoryTask


def task(kind, x, y, options=None):
    """Build a task; the first tenth is for validation, the rest for training."""
    n = len(x)
    rows = {"train": np.arange(n // 10, n), "valid": np.arange(n // 10)}
    return MemoryTask(kind, x, y, rows, options)


def tokens(n, steps, kinds=6, seed=0):
    """Draw lists of random tokens; return them with their ids."""
    ids = np.random.default_rng(seed).integers(kinds, size=(n, steps))
    return [[f"w{i}" for i in row] for row in ids], ids


def shift(ids, lag, seed=1):
    """Return the ids `lag` steps before (below 0: after) each step, and random ids beyond the ends."""
    y = np.random.default_rng(seed).integers(ids.max() + 1, size=ids.shape)
    there = slice(lag, None) if lag > 0 else slice(None, lag)
    y[:, there] = np.roll(ids, lag, 1)[:, there]
    return y.tolist()


def sample_of(kind, x, y, options=None):
    return draw_sample(task(kind, x, y, options))


def facts(**changed):
    """Build facts of a text classification, with some changed."""
    defaults = dict(
        task="data", kind="classify", unit="words", width=1_000, examples=10_000, sampled=1_000, median=30.0
    )
    return Facts(
        **(defaults | dict(most=60.0, longest=100, outputs=2, commonest=0.5, rarest=0.5, conflict=0.0) | changed)
    )
