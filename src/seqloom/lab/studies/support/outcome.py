"""What many trials say together: a mean for every condition and model, and differences seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqloom.lab.stats.intervals import Difference, Summary, compare_pairs, holm, summarise

LEVEL = 0.05  # a corrected p below it is called a difference


@dataclass(frozen=True)
class Metric:
    """A number that a model is judged by, and whether low is good."""

    name: str
    lower: bool = False
    log: bool = False  # shown in logarithms


@dataclass(frozen=True)
class Trial:
    """One training and what came of it; `split` is "valid" where it served to tune."""

    condition: str
    model: str
    lr: float
    start: str
    seed: int
    split: str
    hidden: int
    parameters: int
    scores: dict[str, float]  # empty where it failed
    losses: list[float]  # of training, means over equal spans
    ms_per_step: float | None
    failed: str = ""
    skipped: int = 0  # steps whose gradient was not finite

    def __str__(self) -> str:
        said = self.failed or ", ".join(f"{name} {value:.4g}" for name, value in self.scores.items())
        tuning = f", lr {self.lr:g}, {self.start}" if self.split == "valid" else ""
        return f"{self.condition}, {self.model}, {'tuning' if tuning else f'seed {self.seed}'}{tuning}: {said}"


@dataclass(frozen=True)
class Group:
    """All result trials of one model under one condition."""

    condition: str
    model: str
    trials: tuple[Trial, ...]

    def values(self, metric: str) -> list[float | None]:
        return [None if t.failed else t.scores[metric] for t in self.trials]

    def summary(self, metric: str) -> Summary:
        return summarise(self.values(metric))


@dataclass(frozen=True)
class Contest:
    """The named model minus another, seed by seed; `p` is corrected for all contests of the study."""

    condition: str
    model: str
    other: str
    difference: Difference
    p: float | None
    better: bool | None  # None: not told apart


def groups(trials: Sequence[Trial]) -> list[Group]:
    """Results without those of tuning, in the order in which they came."""
    results = [t for t in trials if t.split == "test"]
    names = dict.fromkeys((t.condition, t.model) for t in results)
    return [Group(c, m, tuple(t for t in results if (t.condition, t.model) == (c, m))) for c, m in names]


def contests(trials: Sequence[Trial], metric: Metric, named: str) -> list[Contest]:
    """The named model beside every other under every condition."""
    found = {(g.condition, g.model): g for g in groups(trials)}
    pairs = [(c, m) for c, m in found if m != named and (c, named) in found]
    apart = [_paired(found[c, named], found[c, m], metric.name) for c, m in pairs]
    raised = holm([d.p for d in apart])
    return [
        Contest(c, named, m, d, p, _better(d, p, metric)) for (c, m), d, p in zip(pairs, apart, raised, strict=True)
    ]


def _paired(one: Group, other: Group, metric: str) -> Difference:
    theirs = {t.seed: v for t, v in zip(other.trials, other.values(metric), strict=True)}
    mine = [(v, theirs[t.seed]) for t, v in zip(one.trials, one.values(metric), strict=True) if t.seed in theirs]
    return compare_pairs([a for a, _ in mine], [b for _, b in mine])


def _better(difference: Difference, p: float | None, metric: Metric) -> bool | None:
    if p is None or p >= LEVEL or not difference.mean:
        return None
    return (difference.mean < 0) == metric.lower


def contest_rows(found: Sequence[Contest]) -> list[dict[str, Any]]:
    called = {None: "not told apart", True: "better", False: "worse"}
    return [
        {
            "condition": c.condition,
            "contest": f"{c.model} - {c.other}",
            "difference": c.difference.mean,
            "low": c.difference.low,
            "high": c.difference.high,
            "p": c.difference.p,
            "p, Holm": c.p,
            "seeds": c.difference.n,
            "called": f"{c.model} {called[c.better]}" if c.better is not None else called[None],
        }
        for c in found
    ]


def said(found: Sequence[Contest], named: str) -> str:
    """How many contests the named model wins and loses, and against whom."""
    if not found:
        return ""
    if all(c.p is None for c in found):
        return "One seed shows no difference between models: train with more."
    parts = []
    for word, better in (("better than", True), ("worse than", False), ("not told apart from", None)):
        mine = [c for c in found if c.better is better]
        if mine:
            others = {m: sum(c.other == m for c in mine) for m in dict.fromkeys(c.other for c in mine)}
            parts.append(f"{word} {', '.join(f'{m} in {n}' for m, n in others.items())}")
    return f"Of {len(found)} contests, seed by seed and Holm-corrected, {named} is {'; '.join(parts)}."
