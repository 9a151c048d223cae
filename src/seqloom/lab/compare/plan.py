"""The plan of a comparison: how many models, steps and seeds fit the time budget.

All models are trained for a ninth of the steps with each of their learning rates; the better ones are trained up to
a third with their best rate; the best few are trained to the end with several seeds. A budget that is too short for
this gets a short plan: a few models, once each, perhaps for part of an epoch; if not even that fits, no training. The
plan is made and stored before the first training, so that a resumed comparison ends with the same result as an
uninterrupted one.

Jamieson & Talwalkar 2016, arXiv 1502.07943 (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from seqloom.lab.console import format_seconds

FIRST_RUNG, SECOND_RUNG = 9, 3  # the rungs end after 1/9 and 1/3 of the steps
PLANNED_SHARE = 0.85  # share of the remaining time; the rest is a reserve for errors of the estimates
JOB_OVERHEAD = 0.5  # seconds that a job takes in addition to its steps
ENOUGH_STEPS, ENOUGH_EPOCHS = 1000, 3  # dropping models is worth it to reach this
GOOD_STEPS, FEWEST_STEPS = 300, 200  # for a small data set: desired and minimal steps
MOST_STEPS, MOST_EPOCHS = 2000, 20
ENOUGH_MODELS = 5  # training for fewer steps is worth it to keep this many models
ENDLESS_EPOCH = 100  # steps that count as an epoch of endless data
VALIDATIONS = (18, 9)  # validations per training; the smaller number if they are expensive
VALIDATION_SHARE = 0.25  # share of the training time for validations
# Factor by which the first stages may exceed the plan, and their latest end as a share of the time.
TOLERANCE, LATEST_SHARE = 1.5, 0.8
# Limits of a short plan: maximum models, minimum useful steps, validations.
SHORT_MODELS, SHORT_STEPS, SHORT_VALIDATIONS = 4, 60, (3, 1)
SHORT_LOSS = 0.7  # minimum share of the steps that one model could get, if several models are trained
BUDGETS = tuple(60 * m for m in (1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 1440, 2880, 10080))  # seconds, to suggest


@dataclass(frozen=True)
class TrainingCost:
    """Seconds of a step, of a validation and of the test; bytes held in training."""

    step: float
    valid: float
    test: float
    memory: int = 0


@dataclass(frozen=True)
class TrainingPlan:
    """The trainings of a comparison: which models, how many, and for how many steps."""

    models: tuple[str, ...]
    rates: int  # hyperparameter settings of each model
    finalists: int
    seeds: int
    steps: int
    every: int  # steps between validations
    patience: int  # validations without progress after which a training stops
    seconds: float  # estimated duration
    epochs: float | None = None  # epochs of the longest trainings; None for endless data
    is_short: bool = False  # the budget was too short for a thorough comparison
    more: str = ""  # a sentence: what a larger budget would allow

    @property
    def is_screened(self) -> bool:
        """Whether rungs select the finalists; otherwise all models are finalists."""
        return len(self.models) * self.rates > self.finalists

    @property
    def first(self) -> int:
        """The step at which the first rung ends."""
        return self.steps // FIRST_RUNG

    @property
    def second(self) -> int:
        """The step at which the second rung ends."""
        return self.steps // SECOND_RUNG

    @property
    def survivors(self) -> int:
        """Number of models on the second rung."""
        return min(len(self.models), max(self.finalists + 1, math.ceil(len(self.models) / 3)))


NO_TRAINING = TrainingPlan((), 1, 0, 0, 0, 1, 0, 0.0, is_short=True)


@dataclass(frozen=True)
class Limits:
    """Constraints of a plan; None where the time decides."""

    seconds: float  # remaining seconds
    workers: int
    seeds: int
    epoch: int | None  # steps of an epoch; None for endless data
    all_models: bool = False  # the models were chosen by name
    rates: int | None = None
    spent: float = 0.0  # seconds for everything except training


def plan_steps(models: tuple[str, ...], steps: int, seeds: int, rates: int | None) -> TrainingPlan:
    """Plan for a number of steps, rounded up to complete validation intervals, whatever time they take."""
    validations = max((n for n in VALIDATIONS if n <= steps), default=min(VALIDATIONS))
    every = -(-steps // validations)
    finalists = min(3, len(models))
    return TrainingPlan(models, rates or 2, finalists, seeds, every * validations, every, validations // 3, 0.0)


def plan_budget(speeds: dict[str, TrainingCost], limits: Limits) -> TrainingPlan:
    """Plan the largest comparison that fits the time; a plan without models if nothing fits.

    Args:
        speeds: the measured speeds by model, in order of preference.
        limits: the time and what is fixed.
    """
    if not speeds:
        return NO_TRAINING
    plan = _find_plan(speeds, limits) or _find_short_plan(speeds, limits)
    epochs = plan.steps / limits.epoch if limits.epoch else None
    return replace(plan, epochs=epochs, more=_suggest_budget(plan, speeds, limits))


def share_time(plan: TrainingPlan, speeds: dict[str, TrainingCost]) -> dict[str, float]:
    """Return the share of the training time after which each stage must end.

    The first two may take longer than planned, because dropping a seed from the last stage costs less than dropping a
    model from them.
    """
    if not plan.is_screened:
        return {"final": 1.0}
    chosen = [speeds[name] for name in plan.models]
    each = sorted((plan.steps * (c.step + c.valid / plan.every) for c in chosen), reverse=True)
    first = plan.rates * (sum(each) / FIRST_RUNG + JOB_OVERHEAD * len(chosen))
    second = sum(each[: plan.survivors]) * (1 / SECOND_RUNG - 1 / FIRST_RUNG) + JOB_OVERHEAD * plan.survivors
    last = sum(each[: plan.finalists]) * (plan.seeds - 1 / SECOND_RUNG)
    last += plan.seeds * plan.finalists * (_slow_mean([c.test for c in chosen]) + JOB_OVERHEAD)
    total = first + second + last
    shares = {"first": first / total, "second": (first + second) / total}
    return {stage: min(LATEST_SHARE, TOLERANCE * share) for stage, share in shares.items()} | {"final": 1.0}


def _find_plan(speeds: dict[str, TrainingCost], limits: Limits) -> TrainingPlan | None:
    """Prefer enough steps for as many models as possible; then fewer steps, fewer models, fewer seeds."""
    epoch = limits.epoch or ENDLESS_EPOCH
    wanted = max(GOOD_STEPS, min(ENOUGH_EPOCHS * epoch, max(epoch, ENOUGH_STEPS)))
    shapes = [_fill(shape, speeds, limits) for shape in _list_shapes(list(speeds), limits)]
    whole = [shape for shape in shapes if shape.seeds == limits.seeds]
    many = [shape for shape in whole if len(shape.models) >= min(ENOUGH_MODELS, len(speeds))]
    few = max(epoch, FEWEST_STEPS)
    levels = ((many, wanted), (many, few), (whole, few), (shapes, few), (shapes, epoch))
    return next((shape for some, least in levels for shape in some if shape.steps >= least), None)


def _list_shapes(models: Sequence[str], limits: Limits) -> list[TrainingPlan]:
    """List plans without steps, from the most thorough to the smallest."""
    n = len(models)
    shapes = []
    sizes = [n] if limits.all_models else [k for k in (n, 10, 8, 6, 5, 4, 3, 2) if k <= n]
    for count in sizes:
        for rates in [limits.rates] if limits.rates else [3, 2, 1] if count == n else [1]:
            for finalists in (3, 2):
                shapes.append((count, rates, finalists, limits.seeds))
    smallest = sizes[-1]
    shapes += [(smallest, limits.rates or 1, 2, seeds) for seeds in range(limits.seeds - 1, 0, -1)]
    shapes += [] if limits.all_models else [(1, limits.rates or 1, 1, 1)]
    return [
        TrainingPlan(tuple(models[:count]), rates, min(finalists, count), seeds, 0, 1, 0, 0.0)
        for count, rates, finalists, seeds in shapes
    ]


def _fill(
    shape: TrainingPlan, speeds: dict[str, TrainingCost], limits: Limits, choices: Sequence[int] = VALIDATIONS
) -> TrainingPlan:
    """Set as many steps as the time allows; 0 if it allows none."""
    plan = replace(shape, steps=0)
    for validations in choices:
        fixed, each = _costs(shape, speeds, validations, limits.workers)
        steps = (PLANNED_SHARE * limits.seconds * limits.workers - fixed) / each
        most = max(MOST_STEPS, MOST_EPOCHS * (limits.epoch or 0))
        every = int(min(steps, most)) // validations
        if every < 1:
            continue
        seconds = (fixed + each * every * validations) / limits.workers
        patience = validations // 3 if validations >= min(VALIDATIONS) else 0
        plan = replace(shape, steps=every * validations, every=every, patience=patience, seconds=round(seconds, 1))
        if fixed <= VALIDATION_SHARE * each * plan.steps:
            break
    return plan


def _costs(shape: TrainingPlan, speeds: dict[str, TrainingCost], validations: int, workers: int) -> tuple[float, float]:
    """Return (seconds independent of the steps, seconds for each step), summed over all workers."""
    chosen = [speeds[name] for name in shape.models]
    step, valid, test = (_slow_mean([getattr(s, part) for s in chosen]) for part in ("step", "valid", "test"))
    runs = shape.finalists * shape.seeds
    idle = -(-runs // workers) * workers / runs  # the last runs leave some workers idle
    if not shape.is_screened:
        return idle * runs * (JOB_OVERHEAD + validations * valid + test), idle * runs * step
    first, second = shape.rates / FIRST_RUNG, shape.survivors * (1 / SECOND_RUNG - 1 / FIRST_RUNG)
    last = idle * shape.finalists * (shape.seeds - 1 / SECOND_RUNG)
    whole_runs = first * len(chosen) + second + last  # the length of all trainings together
    jobs = shape.rates * len(chosen) + shape.survivors + runs
    fixed = jobs * JOB_OVERHEAD + idle * runs * test + validations * valid * whole_runs
    return fixed, first * sum(s.step for s in chosen) + (second + last) * step


def _slow_mean(values: Sequence[float]) -> float:
    """Return a power mean: it is unknown which models reach the later rungs, so slow ones get a larger weight."""
    return float((sum(v**4 for v in values) / len(values)) ** 0.25)


def _find_short_plan(speeds: dict[str, TrainingCost], limits: Limits) -> TrainingPlan:
    """Train a few models once, for as many steps as possible; none if there is no time for a single step.

    Fewer models get more steps, but models that fill an otherwise idle worker cost hardly any.
    """
    names = list(speeds)
    most = len(names) if limits.all_models else min(SHORT_MODELS, len(names))
    shapes = [TrainingPlan(tuple(names[:n]), 1, n, 1, 0, 1, 0, 0.0, is_short=True) for n in range(most, 0, -1)]
    plans = [_fill(shape, speeds, limits, SHORT_VALIDATIONS) for shape in shapes]
    for plan in plans:
        enough = SHORT_STEPS
        if limits.all_models:
            enough = 1
        elif plan.finalists <= limits.workers:
            enough = max(1, min(SHORT_STEPS, int(SHORT_LOSS * plans[-1].steps)))
        if plan.steps >= enough:
            return plan
    return plans[-1] if plans[-1].steps else NO_TRAINING


def _suggest_budget(plan: TrainingPlan, speeds: dict[str, TrainingCost], limits: Limits) -> str:
    """Describe what the next larger budget, with at least twice the steps, would allow."""
    for budget in BUDGETS:
        larger = _find_plan(speeds, replace(limits, seconds=budget - limits.spent))
        if larger is None or budget <= limits.seconds + limits.spent or larger.steps < 2 * plan.steps:
            continue
        epochs = f" ({_format_epochs(larger.steps / limits.epoch)} epochs)" if limits.epoch else ""
        count = len(larger.models)
        # Of more models, if there was no time to measure them all.
        models = f" of up to {count} models" if count > 1 else ""
        return f"--budget {format_seconds(budget)} would allow {larger.steps:,} steps{epochs}{models}"
    return ""


def _format_epochs(count: float) -> str:
    return f"{count:,.0f}" if count >= 10 else f"{count:.2g}"


def longer_budget(seconds: float) -> float:
    """Return a usual budget of at least twice the seconds."""
    return next((budget for budget in BUDGETS if budget >= 2 * seconds), 2 * seconds)
