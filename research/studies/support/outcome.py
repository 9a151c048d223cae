"""Statistics over trials: means per condition and model, and differences between models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from research.studies.support.counts import Count, compare_counts, count_hits
from research.studies.support.metric import TrialMetric
from research.studies.support.summary import Summary, holm, summarise
from research.studies.support.unpaired import Change, Scale, compare_on_scale, compare_ranks
from seqloom.core.errors import UserError
from seqloom.core.plurals import count

LEVEL = 0.05  # significance level for corrected p values
LISTED = 2  # differences that a verdict names for each pair of models
EFFECTS: dict[Scale, str] = {"plain": "difference", "log": "ratio", "logit": "ratio of odds"}


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


def read_trial(stored: dict[str, Any], file: Path | None) -> Trial:
    """Return a trial from the ledger in this file.

    Raises:
        UserError: If another version has stored it.
    """
    try:
        return Trial(**stored)
    except TypeError as error:
        raise UserError(f"{file} was written by another version: {error}; move it away to continue") from error


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
    """The reference model against another one under one condition.

    Seeds are not pairs: a seed gives different weights to different models. If some seeds of a model solve the problem
    and others are far from it, `solved` has the counts of both and Fisher's test decides; otherwise
    Welch's test on the scale of the metric. If trainings failed, they are the worst results and the Mann-Whitney test
    of the ranks decides. `p` is corrected for the conditions of this pair of models.
    """

    condition: str
    model: str
    other: str
    change: Change
    solved: tuple[Count, Count] | None
    failed: tuple[int, int]
    p_alone: float | None
    p: float | None
    better: bool | None  # None: no significant difference
    share: float | None = None  # of pairs of seeds that the reference model wins, if a training failed

    def __str__(self) -> str:
        if self.solved:
            return f"{self.condition}: solved by {self.solved[0]} seeds against {self.solved[1]}"
        one, other = self.change.mean_a, self.change.mean_b
        losses = [f" ({count(n, 'failed seed')})" if n else "" for n in self.failed]
        return f"{self.condition}: {format_score(one)}{losses[0]} against {format_score(other)}{losses[1]}"


def groups(trials: Sequence[Trial]) -> list[Group]:
    """Group the result trials by condition and model, without tuning trials."""
    results = [t for t in trials if t.split == "test"]
    names = dict.fromkeys((t.condition, t.model) for t in results)
    return [Group(c, m, tuple(t for t in results if (t.condition, t.model) == (c, m))) for c, m in names]


def contests(
    trials: Sequence[Trial],
    metric: TrialMetric,
    reference: str,
    count_answers: Callable[[str], int | None] = lambda _: None,
) -> list[Contest]:
    """Compare the reference model with every other model under every condition.

    p-values are corrected by Holm's method over the conditions of each pair of models, which are one question.

    Args:
        trials: The trials of all models.
        metric: The score to compare.
        reference: The model that is compared with all others.
        count_answers: Returns the number of test answers of a condition, see `TrialMetric.resolution`.
    """
    by_name = {(g.condition, g.model): g for g in groups(trials)}
    answers: dict[tuple[str, str], Contest] = {}
    for other in dict.fromkeys(m for _, m in by_name if m != reference):
        conditions = [c for c, m in by_name if m == other and (c, reference) in by_name]
        mine = [
            _compare(by_name[c, reference], by_name[c, other], metric, metric.resolution(count_answers(c)))
            for c in conditions
        ]
        for one, p in zip(mine, holm([m.p_alone for m in mine]), strict=True):
            answers[one.condition, other] = replace(one, p=p, better=_better(one, p, metric))
    return [answers[key] for key in by_name if key in answers]


def _compare(one: Group, other: Group, metric: TrialMetric, resolution: float) -> Contest:
    values = [[v for v in g.values(metric.name) if v is not None] for g in (one, other)]
    change = compare_on_scale(values[0], values[1], metric.scale, resolution)
    counts = [count_hits(metric.solves(v) for v in g.values(metric.name)) for g in (one, other)]
    mixed = any(
        any(metric.solves(v) for v in g.values(metric.name)) and any(metric.is_far(v) for v in g.values(metric.name))
        for g in (one, other)
    )
    solved = (counts[0], counts[1]) if mixed else None
    failed = (len(one.trials) - len(values[0]), len(other.trials) - len(values[1]))
    share: float | None = None
    if solved:
        p = compare_counts(*solved) if min(len(one.trials), len(other.trials)) > 1 else None
    elif any(failed):  # a failed training is worse than any other
        sign = -1 if metric.lower else 1
        ranked = [[sign * v for v in mine] + [-math.inf] * n for mine, n in zip(values, failed, strict=True)]
        share, p = compare_ranks(ranked[0], ranked[1])
    else:
        p = change.p
    return Contest(one.condition, one.model, other.model, change, solved, failed, p, None, None, share)


def _better(contest: Contest, p: float | None, metric: TrialMetric) -> bool | None:
    if p is None or p >= LEVEL:
        return None
    if contest.solved:
        one, other = (c.hits / c.n for c in contest.solved)
        return one > other
    if contest.share is not None:
        return contest.share > 0.5
    neutral = 0.0 if metric.scale == "plain" else 1.0
    effect = contest.change.effect
    return None if effect is None or effect == neutral else (effect < neutral) == metric.lower


def tabulate_contests(comparisons: Sequence[Contest], metric: TrialMetric) -> list[dict[str, Any]]:
    """Return one table row per contest."""
    results = {None: "no significant difference", True: "better", False: "worse"}
    return [
        {
            "condition": c.condition,
            "comparison": f"{c.model} - {c.other}",
            c.model: c.change.mean_a,
            "other": c.change.mean_b,
            EFFECTS[metric.scale]: c.change.effect,
            "low": c.change.low,
            "high": c.change.high,
            "solved": f"{c.solved[0]} / {c.solved[1]}" if c.solved else "",
            "p": c.p_alone,
            "p, Holm": c.p,
            "seeds": " + ".join(_format_seeds(n, lost) for n, lost in zip(c.change.n, c.failed, strict=True)),
            "result": f"{c.model} {results[c.better]}" if c.better is not None else results[None],
        }
        for c in comparisons
    ]


def _format_seeds(n: int, failed: int) -> str:
    return f"{n} of {n + failed}" if failed else str(n)


def format_contests(comparisons: Sequence[Contest], reference: str, metric: TrialMetric) -> str:
    """Say in how many conditions the reference model beats each other model, by how much, and where it loses."""
    if not comparisons:
        return ""
    if all(c.p is None for c in comparisons):
        return "One seed is not enough to compare models; use more seeds."
    sentences = []
    for other in dict.fromkeys(c.other for c in comparisons):
        mine = [c for c in comparisons if c.other == other]
        total, parts = count(len(mine), "condition"), []
        for word, better in (("is better than", True), ("is worse than", False)):
            here = [c for c in mine if c.better is better]
            if here:
                parts.append(f"{word} {other} in {len(here)} of {total} ({_list(here)})")
        rest = [c for c in mine if c.better is None]
        if rest:
            where = f"{len(rest)} of {total}" if len(mine) > 1 else "the only condition"
            what = "no significant difference" + (f" from {other}" if not parts else "")
            parts.append(f"shows {what} in {where} ({_list_intervals(rest, metric)})")
        sentences.append(f"{reference} {', '.join(parts)}.")
    return " ".join(sentences)


def _list(here: Sequence[Contest]) -> str:
    return "; ".join(map(str, here[:LISTED])) + _more(here)


def _list_intervals(here: Sequence[Contest], metric: TrialMetric) -> str:
    return "; ".join(f"{c.condition}: {_format_interval(c, metric)}" for c in here[:LISTED]) + _more(here)


def _more(here: Sequence[Contest]) -> str:
    return f"; {len(here) - LISTED} more" if len(here) > LISTED else ""


def _format_interval(c: Contest, metric: TrialMetric) -> str:
    if c.solved:
        return f"solved by {c.solved[0]} seeds against {c.solved[1]}"
    if any(c.failed):
        return str(c).partition(": ")[2]
    if c.change.low is None or c.change.high is None:
        return "too few seeds"
    return f"{EFFECTS[metric.scale]} {format_score(c.change.low)} to {format_score(c.change.high)}"


def format_score(value: float | None) -> str:
    """Format a score with the digits that distinguish scores of its size: 0.0028, 0.38, 0.9903, 34.6, 3.6e+05."""
    if value is None:
        return "failed"
    if 0.9 <= value < 1:
        return f"{value:.4f}"
    return f"{value:.2g}" if abs(value) < 0.1 or abs(value) >= 1_000 else f"{value:.3g}"
