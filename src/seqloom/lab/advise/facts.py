"""What is known about the data before a model is chosen: one record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from seqloom.lab.advise import tables
from seqloom.lab.advise.baseline import Baseline, baseline
from seqloom.lab.advise.curve import Curve
from seqloom.lab.advise.dependence import autocorrelation, dependence
from seqloom.lab.advise.sample import Sample
from seqloom.lab.data.task import Tokens
from seqloom.lab.training.model import build
from seqloom.lab.training.settings import TrainSettings

NEIGHBOURS = 1_500  # examples among which the nearest is looked for


CLEAR = 0.1  # how far a period must rise above the dip before it
ROWS = 200


NOTHING = Curve((0,), (0.0,))
TOPOLOGIES = {
    "classify": "N to 1",
    "regress": "N to 1",
    "tag": "N to N",
    "generate": "N to N",
    "translate": "N to M",
    "forecast": "N to M",
    "transcribe": "N to M",
}


@dataclass(frozen=True)
class Facts:
    """Of a task and a sample of it; what does not apply is None."""

    task: str
    kind: str
    unit: str  # words, characters ..., or numbers
    width: int  # different tokens, or numbers a step
    examples: int | None  # that there are to train on; None without end
    sampled: int
    median: float  # of the lengths, in steps
    most: float  # what 95% of them do not exceed
    longest: int
    outputs: int  # classes, tags, different tokens or values
    commonest: float | None = None  # share of the commonest class or tag
    rarest: float | None = None
    conflict: float | None = None
    nearest: float | None = None
    season: int | None = None
    segment: int = 0  # steps that a forecast reads as one
    device: str = "cpu"
    baseline: Baseline | None = None
    information: Curve = NOTHING
    gradient: Curve = NOTHING

    @property
    def topology(self) -> str:
        return TOPOLOGIES[self.kind]

    @property
    def steps(self) -> float:
        """Of a usual sequence, as a model reads it."""
        return self.median / max(1, self.segment)

    @property
    def reach(self) -> float:
        """Such steps within which the information about a target lies, 0 where no single step says anything."""
        return (self.information.reach or 0) / max(1, self.segment)

    @property
    def text(self) -> bool:
        return self.unit != "numbers"

    def document(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self) | {"topology": self.topology}
        for name in ("information", "gradient"):
            curve: Curve = getattr(self, name)
            found[name] |= {"reach": curve.reach, "ahead": curve.ahead}
        return found


def facts(sample: Sample) -> Facts:
    """All but the gradient, which needs a model."""
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
        conflict=conflict(sample),
        nearest=nearest(sample),
        **(_forecast(sample) if task.kind == "forecast" else {}),
        baseline=baseline(sample),
        information=dependence(sample),
        **_balance(sample),
    )


def _forecast(sample: Sample) -> dict[str, Any]:
    model: Any = build(sample.task, TrainSettings())
    return {"season": season(sample), "segment": model.segment}


def _balance(sample: Sample) -> dict[str, Any]:
    if sample.task.kind not in ("classify", "tag"):
        return {}
    y = np.concatenate([e.y.numpy().ravel() for e in sample.examples])
    counts = np.bincount(y[y >= 0], minlength=sample.task.target.size)
    return {"commonest": float(counts.max() / counts.sum()), "rarest": float(counts.min() / counts.sum())}


def season(sample: Sample) -> int | None:
    """In steps; None where there is none, or where no numbers go in."""
    rows = [e.x.numpy() for e in sample.examples[:ROWS] if e.x.dim() > 1]
    longest = min((len(r) for r in rows), default=0) // 2
    if longest < 4:
        return None
    r = np.array([found.mean() for found in autocorrelation(rows, list(range(1, longest + 1)))])
    falling = np.flatnonzero(np.diff(r) > 0)
    if not len(falling):
        return None
    dip = int(falling[0])
    best = dip + int(r[dip:].argmax())
    return best + 1 if r[best] - r[dip] > CLEAR else None


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
