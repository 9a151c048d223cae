"""Facts about a task, computed from a sample."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqloom.lab.advise.baseline import Baseline, fit_linear_baseline, sequence_features
from seqloom.lab.advise.curve import DistanceCurve
from seqloom.lab.advise.dependence import autocorrelation, measure_dependence
from seqloom.lab.advise.sample import Sample
from seqloom.lab.data.task import Tokens
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.registry import KINDS, kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.model import build

NEIGHBOURS = 1_500  # examples among which the nearest is searched
SEASON_RISE = 0.1  # by which the autocorrelation at a season must exceed the dip before it
SEASON_ROWS = 200
NOTHING = DistanceCurve((0,), (0.0,))


@dataclass(frozen=True)
class Facts:
    """Facts about a task; those that do not apply are None."""

    task: str
    kind: str
    unit: str  # words, characters ..., or numbers
    width: int  # vocabulary size, or numbers per step
    examples: int | None  # training examples; None if endless
    sampled: int
    median: float  # median of the lengths, in steps
    most: float  # 95% quantile of the lengths
    longest: int
    outputs: int  # classes, tags, tokens or values to predict
    commonest: float | None = None  # share of the most frequent class or tag
    rarest: float | None = None
    conflict: float | None = None  # share of targets that contradict others with the same input
    nearest: float | None = None  # error of the nearest neighbour
    season: int | None = None  # the season in steps
    segment: int = 0  # steps that a forecasting model reads as one
    device: str = "cpu"
    baseline: Baseline | None = None
    information: DistanceCurve = NOTHING
    gradient: DistanceCurve = NOTHING

    @property
    def is_of_classes(self) -> bool:
        """Whether each row has one class."""
        return self.traits.has_classes and self.traits.is_per_row

    @property
    def is_of_tags(self) -> bool:
        """Whether each step has one class."""
        return self.traits.has_classes and not self.traits.is_per_row

    @property
    def traits(self) -> Kind:
        """Description of the task's kind."""
        return KINDS[self.kind]

    @property
    def topology(self) -> str:
        return self.traits.topology

    @property
    def steps(self) -> float:
        """Length of a typical sequence as a model reads it, in segments for a forecast."""
        return self.median / max(1, self.segment)

    @property
    def reach(self) -> float:
        """Number of such steps within which 90% of the information about a target lies; 0 if no single step has any."""
        return (self.information.reach or 0) / max(1, self.segment)

    @property
    def text(self) -> bool:
        return self.unit != "numbers"

    def document(self) -> dict[str, Any]:
        """Return the facts as JSON."""
        record = asdict(self) | {"topology": self.topology}
        for name in ("information", "gradient"):
            curve: DistanceCurve = getattr(self, name)
            record[name] |= {"reach": curve.reach, "ahead": curve.ahead}
        return record


def collect_facts(sample: Sample) -> Facts:
    """Compute all facts except the gradient, which needs a trained model."""
    task, lengths = sample.task, sample.lengths
    examples = task.splits["train"].size
    return Facts(
        task=task.name,
        kind=task.kind,
        unit=task.input.unit if isinstance(task.input, Tokens) else "numbers",
        width=task.input.size,
        examples=examples,
        sampled=len(sample),
        median=float(np.median(lengths)),
        most=float(np.quantile(lengths, 0.95)),
        longest=int(lengths.max()),
        outputs=task.target.size,
        conflict=measure_conflict(sample),
        nearest=nearest_neighbour_error(sample),
        **(_forecast(sample) if kind_of(task).spans_rows else {}),
        baseline=fit_linear_baseline(sample),
        information=measure_dependence(sample),
        **_balance(sample),
    )


def _forecast(sample: Sample) -> dict[str, Any]:
    model: Any = build(sample.task, TrainSettings())
    return {"season": find_season(sample), "segment": model.segment}


def _balance(sample: Sample) -> dict[str, Any]:
    if not kind_of(sample.task).has_classes:
        return {}
    y = np.concatenate([e.y.numpy().ravel() for e in sample.examples])
    counts = np.bincount(y[y >= 0], minlength=sample.task.target.size)
    return {"commonest": float(counts.max() / counts.sum()), "rarest": float(counts.min() / counts.sum())}


def find_season(sample: Sample) -> int | None:
    """Return the season of a series in steps; None if there is none, or if the input is not numeric."""
    rows = [e.x.numpy() for e in sample.examples[:SEASON_ROWS] if e.x.dim() > 1]
    longest = min((len(r) for r in rows), default=0) // 2
    if longest < 4:
        return None
    r = np.array([one.mean() for one in autocorrelation(rows, list(range(1, longest + 1)))])
    rising = np.flatnonzero(np.diff(r) > 0)
    if not len(rising):
        return None
    dip = int(rising[0])
    best = dip + int(r[dip:].argmax())
    return best + 1 if r[best] - r[dip] > SEASON_RISE else None


def measure_conflict(sample: Sample) -> float | None:
    """Return the share of targets that differ from the most frequent target of the same input.

    The input is the sequence of a class, or the single token of a tag; None for other targets.
    """
    kind = kind_of(sample.task)
    if not kind.has_classes or not (kind.is_per_row or isinstance(sample.task.input, Tokens)):
        return None
    targets: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for e in sample.examples:
        if kind.is_per_row:
            targets[e.x.numpy().tobytes()][int(e.y)] += 1
        else:
            for token, tag in zip(e.x.tolist(), e.y.tolist(), strict=True):
                targets[token][tag] += tag >= 0
    every = sum(sum(counts.values()) for counts in targets.values())
    right = sum(max(counts.values()) for counts in targets.values())
    return 1 - right / every if every else None


def nearest_neighbour_error(sample: Sample) -> float | None:
    """Return the error of predicting the class of the most similar example."""
    kind = kind_of(sample.task)
    if not (kind.has_classes and kind.is_per_row):
        return None
    from sklearn.preprocessing import normalize

    y = sample.labels
    rows = np.flatnonzero(y >= 0)[:NEIGHBOURS]
    x, y = normalize(sequence_features(sample)[rows]), y[rows]
    similarity = x @ x.T
    similarity = np.asarray(similarity.todense() if hasattr(similarity, "todense") else similarity)
    np.fill_diagonal(similarity, -np.inf)
    return float((y[similarity.argmax(1)] != y).mean())
