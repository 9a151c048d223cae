"""How much of a target the input leaves open: equal inputs with different targets, nearest examples that are wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable

import numpy as np

from seqloom.lab.advise import tables
from seqloom.lab.advise.sample import Sample
from seqloom.lab.data.task import Tokens

NEIGHBOURS = 1_500  # examples among which the nearest is looked for


def conflict(sample: Sample) -> float | None:
    """The share of targets that no model can get right: not the commonest one of their very input.

    For a class or a tag: of all sequences, or of all tokens taken by themselves. None for other targets.
    """
    kind = sample.task.kind
    if kind not in ("classify", "tag") or (kind == "tag" and not isinstance(sample.task.input, Tokens)):
        return None
    said: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for e in sample.examples:
        if kind == "classify":
            said[e.x.numpy().tobytes()][int(e.y)] += 1
        else:
            for token, tag in zip(e.x.tolist(), e.y.tolist(), strict=True):
                said[token][tag] += tag >= 0
    every = sum(sum(tags.values()) for tags in said.values())
    right = sum(max(tags.values()) for tags in said.values())
    return 1 - right / every if every else None


def nearest(sample: Sample) -> float | None:
    """The error of giving every example the class of the one that is most like it."""
    if sample.task.kind != "classify":
        return None
    from sklearn.preprocessing import normalize

    y = sample.labels
    rows = np.flatnonzero(y >= 0)[:NEIGHBOURS]
    x, y = normalize(tables.table(sample)[rows]), y[rows]
    like = x @ x.T
    like = np.asarray(like.todense() if hasattr(like, "todense") else like)
    np.fill_diagonal(like, -np.inf)
    return float((y[like.argmax(1)] != y).mean())
