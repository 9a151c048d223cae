"""What the outcomes of many trainings say: a table, and one sentence."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seqloom.interval import Interval, interval


@dataclass(frozen=True)
class Outcome:
    """One training, or a baseline (which has no seed); the numbers are 0 where it failed."""

    model: str
    seed: int | None
    parameters: int = 0
    hidden: int | None = None
    validation: float = 0.0  # accuracies
    test: float = 0.0
    epoch: int | None = None  # the one chosen on validation, from 1
    seconds_per_epoch: float | None = None
    failed: str = ""

    @property
    def trained(self) -> bool:
        return self.seed is not None and not self.failed

    def __str__(self) -> str:
        name = self.model if self.seed is None else f"{self.model}, seed {self.seed}"
        return f"{name}: {self.failed or f'validation accuracy {self.validation:.1%}'}"


@dataclass(frozen=True)
class Row:
    """All outcomes of one model."""

    model: str
    baseline: bool
    parameters: int
    hidden: int | None
    test: Interval | None  # none where it failed
    seconds_per_epoch: float | None
    failed: str

    def shown(self) -> dict[str, Any]:
        """As a person reads it, by heading."""
        accuracy = f"failed: {self.failed}"
        if self.test is not None:
            accuracy = f"{self.test.mean:.1%}" + ("" if self.test.half is None else f" +- {100 * self.test.half:.1f}")
        return {
            "model": f"{self.model} (baseline)" if self.baseline else self.model,
            "hidden": self.hidden,
            "parameters": self.parameters or None,
            "s/epoch": self.seconds_per_epoch,
            "seeds": None if self.baseline or self.test is None else self.test.n,
            "test accuracy": accuracy,
        }


def table(outcomes: Sequence[Outcome]) -> list[Row]:
    """One row a model, the most accurate first, those that failed last."""
    rows = []
    for model in dict.fromkeys(o.model for o in outcomes):
        mine = [o for o in outcomes if o.model == model]
        failed = next((o.failed for o in mine if o.failed), "")
        seconds = [o.seconds_per_epoch for o in mine if o.seconds_per_epoch is not None]
        rows.append(
            Row(
                model=model,
                baseline=mine[0].seed is None,
                parameters=mine[0].parameters,
                hidden=mine[0].hidden,
                test=None if failed else interval([o.test for o in mine]),
                seconds_per_epoch=statistics.median(seconds) if seconds else None,
                failed=failed,
            )
        )
    return sorted(rows, key=lambda row: -1.0 if row.test is None else row.test.mean, reverse=True)


def conclusion(outcomes: Sequence[Outcome], baseline: str) -> str:
    """One sentence, which calls a lead only where the paired interval of the difference excludes 0."""
    rows = table(outcomes)
    scores = {row.model: row.test for row in rows if row.test is not None}
    trained = [row.model for row in rows if row.test is not None and not row.baseline]
    if not trained:
        return "No model was trained."
    first, *rest = trained
    best, line = scores[first], scores[baseline].mean
    if best.n == 1:
        return "One seed shows no difference between models: train with more."
    above = best.mean > line and Interval(best.mean - line, best.half, best.n).excludes_zero
    against = f"{'above' if above else 'not clearly above'} {baseline} ({line:.1%})"
    differences = {model: paired(outcomes, first, model) for model in rest}
    equal = [model for model, difference in differences.items() if not difference.excludes_zero]
    if equal:
        names = " or ".join([", ".join(equal[:-1]), equal[-1]] if len(equal) > 1 else equal)
        return f"No lead: {first} comes first, {against}; {best.n} seeds cannot tell it from {names}."
    if not rest:
        return f"{first} reaches {best.mean:.1%}, {against}."
    second = differences[rest[0]]
    points = f"{100 * second.mean:.1f} +- {100 * (second.half or 0):.1f} points"
    return f"{first} leads {rest[0]} by {points} over {best.n} paired seeds, and is {against}."


def paired(outcomes: Sequence[Outcome], one: str, other: str) -> Interval:
    """The difference in test accuracy between two models, seed by seed."""
    scores = {(o.model, o.seed): o.test for o in outcomes}
    seeds = [seed for model, seed in scores if model == one and (other, seed) in scores]
    return interval([scores[one, seed] - scores[other, seed] for seed in seeds])
