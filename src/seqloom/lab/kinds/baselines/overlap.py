"""How much two texts of a row have in common: a baseline that knows neither the words nor their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
from torch import Tensor

from seqloom.lab.data.task import END, Task
from seqloom.lab.files.sealed import JSON
from seqloom.lab.kinds.baselines import linear
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.stats.metrics import Array


class Overlap:
    """The shares of tokens and of neighbouring tokens that two texts have in common, and how their lengths differ."""

    def fit(self, rows: Iterable[tuple[Array, Array]]) -> Array:
        """Return the (N, columns) features of the rows; there is nothing to fit."""
        return np.concatenate([self(*part) for part in rows])

    def __call__(self, x: Array, lengths: Array) -> Array:
        return np.array([_compare(row[:n].tolist()) for row, n in zip(x, lengths, strict=True)])

    def arrays(self) -> dict[str, Tensor]:
        return {}

    def settings(self) -> dict[str, JSON]:
        return {}

    @classmethod
    def build(cls, arrays: Mapping[str, Tensor], settings: Mapping[str, Any]) -> Self:
        return cls(**arrays, **settings)


def _compare(ids: list[int]) -> list[float]:
    cut = ids.index(END) if END in ids else len(ids)
    a, b = ids[:cut], ids[cut + 1 :]
    shares = [share for s, t in ((set(a), set(b)), (set(pairwise(a)), set(pairwise(b)))) for share in _shares(s, t)]
    return [*shares, abs(len(a) - len(b)) / max(1, len(a), len(b)), float(a == b)]


def _shares(s: set[Any], t: set[Any]) -> tuple[float, float, float]:
    """Return the size of the intersection as a share of the union, of s and of t."""
    common = len(s & t)
    return common / max(1, len(s | t)), common / max(1, len(s)), common / max(1, len(t))


linear.FEATURES["overlap"] = Overlap


def fit_overlap(task: Task, weights: Sequence[float] = ()) -> ForTask:
    """Fit a logistic regression to what two texts have in common.

    Args:
        task: The data.
        weights: A weight for each class, or none.
    """
    return linear.fit_logistic(task, weights, Overlap())
