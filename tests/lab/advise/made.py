"""Data whose answers are known."""

import numpy as np

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.sample import sample
from seqloom.lab.data.memory import MemoryTask


def task(kind, x, y, options=None):
    """The first tenth validates, the rest trains."""
    n = len(x)
    rows = {"train": np.arange(n // 10, n), "valid": np.arange(n // 10)}
    return MemoryTask(kind, x, y, rows, options)


def tokens(n, steps, kinds=6, seed=0):
    """Lists of random tokens, their numbers beside them."""
    ids = np.random.default_rng(seed).integers(kinds, size=(n, steps))
    return [[f"w{i}" for i in row] for row in ids], ids


def shifted(ids, lag, seed=1):
    """What stood `lag` steps before (or, below 0, after) each step; where nothing did, anything."""
    y = np.random.default_rng(seed).integers(ids.max() + 1, size=ids.shape)
    there = slice(lag, None) if lag > 0 else slice(None, lag)
    y[:, there] = np.roll(ids, lag, 1)[:, there]
    return y.tolist()


def sampled(kind, x, y, options=None):
    return sample(task(kind, x, y, options))


def facts(**changed):
    """Of a middling classification of text, but for what is said."""
    usual = dict(task="data", kind="classify", unit="words", width=1_000, examples=10_000, sampled=1_000, median=30.0)
    return Facts(**(usual | dict(most=60.0, longest=100, outputs=2, commonest=0.5, rarest=0.5, conflict=0.0) | changed))
