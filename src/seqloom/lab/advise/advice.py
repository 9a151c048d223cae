"""Advice on one task: facts, the rules that hold, trials, and models in order. Within a given time."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from seqloom.lab.advise import findings, guides
from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.facts import Facts, facts
from seqloom.lab.advise.gradient import gradient
from seqloom.lab.advise.measured import measured
from seqloom.lab.advise.rule import Fired, fired
from seqloom.lab.advise.sample import Sample, sample
from seqloom.lab.advise.settings import LINEAR, settings, total_steps
from seqloom.lab.advise.trial import NOT_TRIED, Trial, trial
from seqloom.lab.compare.candidates import choose_candidates
from seqloom.lab.data.task import Task
from seqloom.lab.training.settings import TrainSettings
from seqloom.layers.registry import BI_PREFIX

RACE = 1.5
STEPS, FULL = 25, 200  # below which a trial is no more than timed; from which the race counts fully
LEARNED = 0.25  # of the way from the trivial answer to the linear one: less, and the race says nothing
RELATIVE = 0.05  # of a loss: what chance makes of it


RULES = (*findings.FOUND, *guides.FIRST, *guides.SECOND)
SECONDS = 22.0  # that all of it may take, reading the data included
SHORTEST = 4.0  # seconds that are taken in any case, however long reading took
GRADIENT, LONGEST = 0.12, 3.0  # share of the time that a gradient is followed for, and seconds at most
RACERS, TIMED = 8, 0.3  # models that race; the share of a racer's time that any other is timed for
SURE, LEAST = 3, 0.1  # models that are tried in any case; seconds below which no other one is
VALIDATION = 1.1  # a training also validates


@dataclass(frozen=True)
class Advised:
    """One model: what speaks for it, and what it would cost here."""

    name: str  # as `seqloom compare --models` takes it, or "linear"
    points: float
    reasons: tuple[str, ...] = ()
    settings: TrainSettings | None = None
    trial: Trial = NOT_TRIED
    seconds: float | None = None  # of the whole training
    race: float = 0.0  # part of the points


@dataclass(frozen=True)
class Advice:
    """Models, the likeliest first."""

    facts: Facts
    rules: list[Fired]
    models: list[Advised]
    gradient_steps: int
    seconds: float


def advise(task: Task, seconds: float = SECONDS) -> Advice:
    """Look at a task for so many seconds, and say which models to try first."""
    begun = time.perf_counter()
    seconds = max(SHORTEST, seconds)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    some = sample(task)
    known = replace(facts(some), device=device.type)
    curve, steps = gradient(some, min(LONGEST, GRADIENT * seconds), device)
    known = replace(known, gradient=curve)
    rules = fired(RULES, known, measured())
    found = choose_candidates(known.kind, (), max(2, round(known.median)))
    found.sort(key=lambda c: -points(c.name, rules))
    chosen = {c.name: settings(task, known, c) for c in found}
    trials = _trials(some, chosen, device, begun + seconds)
    return Advice(known, rules, _ranked(some, known, rules, chosen, trials), steps, time.perf_counter() - begun)


def _trials(some: Sample, chosen: Mapping[str, TrainSettings], device: torch.device, end: float) -> dict[str, Trial]:
    """The likeliest first, each with its share of the time that is left."""
    shares = [1.0 if number < RACERS else TIMED for number in range(len(chosen))]
    trials = {}
    for number, (name, its) in enumerate(chosen.items()):
        left = (end - time.perf_counter()) * shares[number] / sum(shares[number:])
        if number < SURE or left > LEAST:
            trials[name] = trial(some, its, device, max(left, LEAST))
    return trials


def _ranked(
    some: Sample, known: Facts, rules: list[Fired], chosen: Mapping[str, TrainSettings], trials: Mapping[str, Trial]
) -> list[Advised]:
    places = race(trials, known, len(some) - some.fit)
    models = [Advised(LINEAR, points(LINEAR, rules), reasons(LINEAR, rules))] if known.baseline else []
    for name, its in chosen.items():
        tried, place = trials.get(name, NOT_TRIED), places.get(name, 0.0)
        cost = VALIDATION * tried.step_seconds * total_steps(some.task, known, its)
        worth = -math.inf if tried.failed else points(name, rules) + place
        took = cost if math.isfinite(cost) else None
        models.append(Advised(name, worth, reasons(name, rules), its, tried, took, place))
    return sorted(models, key=lambda m: (-m.points, m.seconds or math.inf))


def reasons(name: str, rules: list[Fired]) -> tuple[str, ...]:
    """The rules that speak for a model (+) or against it (-)."""
    told = [(f.rule, given(name, f)) for f in rules]
    return tuple(f"{'+' if worth > 0 else '-'} {rule.name} ({rule.seed})" for rule, worth in told if worth)


def points(name: str, rules: Sequence[Fired]) -> float:
    """What the rules say for a model and its forms."""
    return sum(given(name, fired) for fired in rules)


def given(name: str, fired: Fired) -> float:
    """By the most particular name that the rule has: gru:2 of bi_gru:2, bi_gru, gru."""
    model = name.partition(":")[0]
    for known in (name, model, model.removeprefix(BI_PREFIX)):
        if known in fired.rule.points:
            return fired.rule.points[known]
    return 0.0


def race(trials: Mapping[str, Trial], facts: Facts, held: int) -> dict[str, float]:
    """Points for the place in the race, by name; `held` examples were scored on."""
    ran = {name: t for name, t in trials.items() if t.steps >= STEPS and math.isfinite(t.score)}
    scores = {name: t.score for name, t in ran.items()}
    if len(scores) < 2 or not _off_the_ground(scores, facts.baseline):
        return {}
    middle = statistics.median(scores.values())
    if facts.kind in ("classify", "tag"):
        unit = 2 * math.sqrt(max(middle * (1 - middle), 1e-2) / max(held, 1))
        ahead = {name: (score - middle) / unit for name, score in scores.items()}
    else:
        ahead = {name: (middle - score) / (RELATIVE * abs(middle) + 1e-9) for name, score in scores.items()}
    weight = min(1.0, statistics.median(t.steps for t in ran.values()) / FULL)
    return {name: weight * max(-RACE, min(RACE, by)) for name, by in ahead.items()}


def _off_the_ground(scores: Mapping[str, float], baseline: Baseline | None) -> bool:
    if baseline is None:
        return True
    best = max(scores.values()) if baseline.higher else min(scores.values())
    way = baseline.linear - baseline.trivial
    return way != 0 and (best - baseline.trivial) / way > LEARNED
