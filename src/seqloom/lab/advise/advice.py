"""Advice on one task within a time limit: facts, the rules that apply, short trainings, and a ranking of models."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.facts import Facts, collect_facts
from seqloom.lab.advise.gradient import measure_gradient
from seqloom.lab.advise.measurements import load_measurements
from seqloom.lab.advise.quick_training import NOT_TRIED, QuickResult, try_model
from seqloom.lab.advise.rules import RULES, MatchedRule, match_rules
from seqloom.lab.advise.sample import Sample, draw_sample
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.candidates import Candidate, choose_candidates
from seqloom.lab.training.sizes import EMBEDDING, default_parameters, fit_size

LINEAR = "linear"  # instead of a layer's name: no sequence model at all

SECONDS = 22.0  # default time limit, reading the data included
FEWEST_SECONDS = 4.0  # used in any case, however long reading takes
GRADIENT_SHARE, GRADIENT_SECONDS = 0.12, 3.0  # share of the time for the gradient, and its limit in seconds
RACERS, TIMED_SHARE = 8, 0.3  # models that race; the time of any other model as a share of a racer's
ALWAYS_TRIED, FEWEST_TRIAL_SECONDS = 3, 0.1  # models tried in any case; others only if this much time is left

RACE_POINTS = 1.5  # maximum points for the rank in the race
# With fewer steps a model is only timed; with the second number its rank counts fully.
RACE_STEPS, FULL_RACE_STEPS = 25, 200
RACE_PROGRESS = 0.25  # progress from the trivial to the linear score below which the race is ignored
LOSS_NOISE = 0.05  # relative random variation of a loss

SMALL_DATA, SMALL_BATCH = 1_000, 16  # up to this many examples, smaller batches give more steps per epoch
TRAINING_STEPS = 4_000  # desired steps of a training
EPOCHS = (3, 100)  # minimum and maximum
VALIDATION_COST = 1.1  # factor on the training time for validations


@dataclass(frozen=True)
class RankedModel:
    """One model: its points, the reasons for them, and its cost on this machine."""

    name: str  # as `seqloom compare --models` takes it, or "linear"
    points: float
    reasons: tuple[str, ...] = ()
    settings: TrainSettings | None = None
    trial: QuickResult = NOT_TRIED
    seconds: float | None = None  # time of the whole training
    race: float = 0.0  # the part of the points from the race


@dataclass(frozen=True)
class Advice:
    """The models, best first, and the basis of the ranking."""

    facts: Facts
    rules: list[MatchedRule]
    models: list[RankedModel]
    gradient_steps: int
    seconds: float


def advise(task: Task, seconds: float = SECONDS, models: Sequence[str] = ()) -> Advice:
    """Rank the models to try on a task.

    Args:
        task: the task; its test split is not used.
        seconds: time limit.
        models: the models to rank, as `seqloom compare --models` takes them; by default a dozen chosen for the kind of
            task.

    Raises:
        UserError: if the task has fewer than two examples, or a model is unknown.
    """
    start = time.perf_counter()
    seconds = max(FEWEST_SECONDS, seconds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sample = draw_sample(task)
    facts = replace(collect_facts(sample), device=device.type)
    curve, steps = measure_gradient(sample, min(GRADIENT_SECONDS, GRADIENT_SHARE * seconds), device)
    facts = replace(facts, gradient=curve)
    rules = match_rules(RULES, facts, load_measurements())
    candidates = choose_candidates(facts.traits, models, max(2, round(facts.median)))
    candidates.sort(key=lambda c: -sum_points(c.name, rules))
    settings = {c.name: choose_settings(task, facts, c) for c in candidates}
    trials = _try_models(sample, settings, device, start + seconds)
    ranking = _rank(sample, facts, rules, settings, trials)
    return Advice(facts, rules, ranking, steps, time.perf_counter() - start)


def choose_settings(task: Task, facts: Facts, candidate: Candidate) -> TrainSettings:
    """Choose the width and learning rate that `seqloom compare` would try first, and the length of the training."""
    batch = SMALL_BATCH if facts.examples is not None and facts.examples <= SMALL_DATA else 32
    length: dict[str, Any] = {"steps": TRAINING_STEPS}
    if facts.examples is not None:
        epochs = round(TRAINING_STEPS / _batches_per_epoch(task, facts, batch))
        length = {"epochs": max(EPOCHS[0], min(EPOCHS[1], epochs))}
    return TrainSettings(
        model=candidate.model,
        layers=candidate.layers,
        hidden=fit_size(task, candidate, default_parameters(task)).hidden,
        embedding=EMBEDDING,
        lr=candidate.rates[0],
        batch=batch,
        **length,
    )


def _total_steps(task: Task, facts: Facts, settings: TrainSettings) -> int:
    if settings.steps is not None or settings.epochs is None:
        return settings.steps or TRAINING_STEPS
    return settings.epochs * _batches_per_epoch(task, facts, settings.batch or 32)


def _batches_per_epoch(task: Task, facts: Facts, batch: int) -> int:
    return max(1, task.count("train", batch=batch) or math.ceil((facts.examples or 1) / batch))


def _try_models(
    sample: Sample, settings: Mapping[str, TrainSettings], device: torch.device, end: float
) -> dict[str, QuickResult]:
    """Try the most promising models first, each for its share of the remaining time."""
    shares = [1.0 if number < RACERS else TIMED_SHARE for number in range(len(settings))]
    trials = {}
    for number, (name, one) in enumerate(settings.items()):
        left = (end - time.perf_counter()) * shares[number] / sum(shares[number:])
        if number < ALWAYS_TRIED or left > FEWEST_TRIAL_SECONDS:
            trials[name] = try_model(sample, one, device, max(left, FEWEST_TRIAL_SECONDS))
    return trials


def _rank(
    sample: Sample,
    facts: Facts,
    rules: list[MatchedRule],
    settings: Mapping[str, TrainSettings],
    trials: Mapping[str, QuickResult],
) -> list[RankedModel]:
    race = score_race(trials, facts, len(sample) - sample.fit)
    models = [RankedModel(LINEAR, sum_points(LINEAR, rules), _reasons(LINEAR, rules))] if facts.baseline else []
    for name, one in settings.items():
        trial, place = trials.get(name, NOT_TRIED), race.get(name, 0.0)
        cost = VALIDATION_COST * trial.step_seconds * _total_steps(sample.task, facts, one)
        points = -math.inf if trial.failed else sum_points(name, rules) + place
        seconds = cost if math.isfinite(cost) else None
        models.append(RankedModel(name, points, _reasons(name, rules), one, trial, seconds, place))
    return sorted(models, key=lambda m: (-m.points, m.seconds or math.inf))


def _reasons(model: str, rules: Sequence[MatchedRule]) -> tuple[str, ...]:
    """Name the rules for (+) and against (-) a model."""
    points = [(matched.rule, matched.points(model)) for matched in rules]
    return tuple(f"{'+' if worth > 0 else '-'} {rule.name} ({rule.source})" for rule, worth in points if worth)


def sum_points(model: str, rules: Sequence[MatchedRule]) -> float:
    return sum(matched.points(model) for matched in rules)


def score_race(trials: Mapping[str, QuickResult], facts: Facts, held: int) -> dict[str, float]:
    """Return the points of each model for its score in the short trainings, relative to the median.

    Args:
        held: number of examples that were scored.

    Returns:
        Between -RACE_POINTS and RACE_POINTS by model; empty if the trainings were too short to tell.
    """
    ran = {name: t for name, t in trials.items() if t.steps >= RACE_STEPS and math.isfinite(t.score)}
    scores = {name: t.score for name, t in ran.items()}
    if len(scores) < 2 or not _has_progress(scores, facts.baseline):
        return {}
    middle = statistics.median(scores.values())
    if facts.traits.has_classes:
        unit = 2 * math.sqrt(max(middle * (1 - middle), 1e-2) / max(held, 1))
        ahead = {name: (score - middle) / unit for name, score in scores.items()}
    else:
        ahead = {name: (middle - score) / (LOSS_NOISE * abs(middle) + 1e-9) for name, score in scores.items()}
    weight = min(1.0, statistics.median(t.steps for t in ran.values()) / FULL_RACE_STEPS)
    return {name: weight * max(-RACE_POINTS, min(RACE_POINTS, by)) for name, by in ahead.items()}


def _has_progress(scores: Mapping[str, float], baseline: Baseline | None) -> bool:
    """Return whether the best model has learned enough for the scores to mean something."""
    if baseline is None:
        return True
    best = max(scores.values()) if baseline.higher else min(scores.values())
    way = baseline.linear - baseline.trivial
    return way != 0 and (best - baseline.trivial) / way > RACE_PROGRESS
