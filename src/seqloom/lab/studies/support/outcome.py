"""Statistics over trials: means per condition and model, and paired differences between models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqloom.core.plurals import count
from seqloom.lab.stats.intervals import Difference, Summary, compare_pairs, holm, summarise

LEVEL = 0.05  # significance level for corrected p values


@dataclass(frozen=True)
class TrialMetric:
    """A score of a model; `lower` means that lower is better."""

    name: str
    lower: bool = False
    log: bool = False  # drawn on a logarithmic axis


@dataclass(frozen=True)
class Trial:
    """One training and its result; `split` is "valid" for tuning trials."""

    condition: str
    model: str
    lr: float
    start: str
    seed: int
    split: str
    hidden: int
    parameters: int
    scores: dict[str, float]  # empty if it failed
    losses: list[float]  # training losses, means over equal spans
    ms_per_step: float | None
    failed: str = ""
    skipped: int = 0  # steps whose gradient was not finite

    def __str__(self) -> str:
        scores = {name: value for name, value in self.scores.items() if not name.startswith("round ")}
        result = self.failed or ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
        tuning = f", lr {self.lr:g}, {self.start}" if self.split == "valid" else ""
        return f"{self.condition}, {self.model}, {'tuning' if tuning else f'seed {self.seed}'}{tuning}: {result}"


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
    """The reference model minus another model, paired by seed; `p` is corrected for all contests of the study."""

    condition: str
    model: str
    other: str
    difference: Difference
    p: float | None
    better: bool | None  # None: no significant difference


def groups(trials: Sequence[Trial]) -> list[Group]:
    """Group the result trials by condition and model, without tuning trials."""
    results = [t for t in trials if t.split == "test"]
    names = dict.fromkeys((t.condition, t.model) for t in results)
    return [Group(c, m, tuple(t for t in results if (t.condition, t.model) == (c, m))) for c, m in names]


def contests(trials: Sequence[Trial], metric: TrialMetric, reference: str) -> list[Contest]:
    """Compare the reference model with every other model under every condition."""
    by_name = {(g.condition, g.model): g for g in groups(trials)}
    pairs = [(c, m) for c, m in by_name if m != reference and (c, reference) in by_name]
    apart = [_compare_groups(by_name[c, reference], by_name[c, m], metric.name) for c, m in pairs]
    corrected = holm([d.p for d in apart])
    return [
        Contest(c, reference, m, d, p, _better(d, p, metric))
        for (c, m), d, p in zip(pairs, apart, corrected, strict=True)
    ]


def _compare_groups(one: Group, other: Group, metric: str) -> Difference:
    theirs = {t.seed: v for t, v in zip(other.trials, other.values(metric), strict=True)}
    mine = [(v, theirs[t.seed]) for t, v in zip(one.trials, one.values(metric), strict=True) if t.seed in theirs]
    return compare_pairs([a for a, _ in mine], [b for _, b in mine])


def _better(difference: Difference, p: float | None, metric: TrialMetric) -> bool | None:
    if p is None or p >= LEVEL or not difference.mean:
        return None
    return (difference.mean < 0) == metric.lower


def tabulate_contests(comparisons: Sequence[Contest]) -> list[dict[str, Any]]:
    """Return one table row per contest."""
    results = {None: "no significant difference", True: "better", False: "worse"}
    return [
        {
            "condition": c.condition,
            "comparison": f"{c.model} - {c.other}",
            "difference": c.difference.mean,
            "low": c.difference.low,
            "high": c.difference.high,
            "p": c.difference.p,
            "p, Holm": c.p,
            "seeds": c.difference.n,
            "result": f"{c.model} {results[c.better]}" if c.better is not None else results[None],
        }
        for c in comparisons
    ]


def format_contests(comparisons: Sequence[Contest], reference: str) -> str:
    """Describe how many contests the reference model wins and loses, and against which models."""
    if not comparisons:
        return ""
    if all(c.p is None for c in comparisons):
        return "One seed is not enough to compare models; use more seeds."
    parts = []
    for word, better in (("better than", True), ("worse than", False), ("not significantly different from", None)):
        mine = [c for c in comparisons if c.better is better]
        if mine:
            others = {m: sum(c.other == m for c in mine) for m in dict.fromkeys(c.other for c in mine)}
            parts.append(f"{word} {', '.join(f'{m} in {n}' for m, n in others.items())}")
    tests = "paired t-tests over seeds, Holm-corrected"
    return f"In {count(len(comparisons), 'comparison')} ({tests}), {reference} is {'; '.join(parts)}."
