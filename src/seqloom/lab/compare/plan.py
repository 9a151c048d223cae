"""From a budget of time to steps: what is trained, how far, and which part of it goes on.

All models are trained for a ninth of the steps with each of their learning rates; the better ones go on to a third
with their best rate; the best few go to the end, with several seeds. One plan is made and written down before the
first training, so that an interrupted comparison ends as one that was not.

Jamieson & Talwalkar 2016, arXiv 1502.07943 (successive halving).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from seqloom.core.errors import UserError

SCREEN, MIDDLE = 9, 3  # the first rung is this part of all steps, and the second this
KEPT = 0.85  # of the time that is left; the rest is for what no estimate knows
START = 0.5  # seconds that a job takes beside its steps
ENOUGH, EPOCHS = 1000, 3  # steps or epochs that are worth giving up models for
LEAST, FEWEST = 300, 200  # steps that a small data set is trained for, at best and at least
MOST_STEPS, MOST_EPOCHS = 2000, 20
SOME = 5  # models that are worth giving up steps for
ENDLESS = 100  # steps that stand for an epoch where there is none
VALIDATIONS = (18, 9)  # in a whole run; the smaller number where validating is expensive
SHARE = 0.25  # of the time of a run that validating may take


@dataclass(frozen=True)
class Speed:
    """Seconds of a step, of a validation and of the test; bytes held in training."""

    step: float
    valid: float
    test: float
    memory: int = 0


@dataclass(frozen=True)
class Plan:
    models: tuple[str, ...]
    rates: int  # configurations of each model
    finalists: int
    seeds: int
    steps: int
    every: int  # steps between validations
    patience: int
    seconds: float  # that it should take

    @property
    def screened(self) -> bool:
        """Whether there is more than what goes to the end anyway."""
        return len(self.models) * self.rates > self.finalists

    @property
    def first(self) -> int:
        return self.steps // SCREEN

    @property
    def second(self) -> int:
        return self.steps // MIDDLE

    @property
    def halved(self) -> int:
        """Models that go on after the first rung."""
        return min(len(self.models), max(self.finalists + 1, math.ceil(len(self.models) / 3)))


@dataclass(frozen=True)
class Asked:
    """What the plan must keep to: the seconds left, workers, and what a person has chosen (None: as time allows)."""

    seconds: float
    workers: int
    seeds: int
    epoch: int | None
    all_models: bool = False
    rates: int | None = None
    spent: float = 0.0  # seconds that everything but training takes


def fixed(models: tuple[str, ...], steps: int, seeds: int, rates: int | None) -> Plan:
    """So many steps, or a few more, whatever time they take."""
    validations = max((n for n in VALIDATIONS if n <= steps), default=min(VALIDATIONS))
    every = -(-steps // validations)
    return Plan(models, rates or 2, min(3, len(models)), seeds, every * validations, every, validations // 3, 0.0)


def plan(speeds: dict[str, Speed], asked: Asked) -> Plan:
    """The largest comparison of these models, the most wanted first, that fits; an error says what would."""
    return _fitting(speeds, asked) or _too_small(speeds, asked)


def _fitting(speeds: dict[str, Speed], asked: Asked) -> Plan | None:
    """Enough steps for as many models as that leaves; else fewer steps; else very few models; else fewer seeds."""
    epoch = asked.epoch or ENDLESS
    wanted = max(LEAST, min(EPOCHS * epoch, max(epoch, ENOUGH)))
    shapes = [_sized(shape, speeds, asked) for shape in _shapes(list(speeds), asked)]
    whole = [shape for shape in shapes if shape.seeds == asked.seeds]
    many = [shape for shape in whole if len(shape.models) >= min(SOME, len(speeds))]
    few = max(epoch, FEWEST)
    levels = ((many, wanted), (many, few), (whole, few), (shapes, few), (shapes, epoch))
    return next((shape for some, least in levels for shape in some if shape.steps >= least), None)


def _shapes(models: Sequence[str], asked: Asked) -> list[Plan]:
    """From the most thorough to the smallest."""
    n = len(models)
    made = []
    sizes = [n] if asked.all_models else [k for k in (n, 10, 8, 6, 5, 4, 3, 2) if k <= n]
    for count in sizes:
        for rates in [asked.rates] if asked.rates else [3, 2, 1] if count == n else [1]:
            for finalists in (3, 2):
                made.append((count, rates, finalists, asked.seeds))
    smallest = sizes[-1]
    made += [(smallest, asked.rates or 1, 2, seeds) for seeds in range(asked.seeds - 1, 0, -1)]
    made += [] if asked.all_models else [(1, asked.rates or 1, 1, 1)]
    return [
        Plan(tuple(models[:count]), rates, min(finalists, count), seeds, 0, 1, 0, 0.0)
        for count, rates, finalists, seeds in made
    ]


def _sized(shape: Plan, speeds: dict[str, Speed], asked: Asked) -> Plan:
    """With as many steps as the time is enough for; 0 where it is not enough for any."""
    found = replace(shape, steps=0)
    for validations in VALIDATIONS:
        fixed, each = _costs(shape, speeds, validations, asked.workers)
        steps = (KEPT * asked.seconds * asked.workers - fixed) / each
        most = max(MOST_STEPS, MOST_EPOCHS * (asked.epoch or 0))
        every = int(min(steps, most)) // validations
        if every < 1:
            continue
        seconds = (fixed + each * every * validations) / asked.workers
        found = replace(
            shape, steps=every * validations, every=every, patience=validations // 3, seconds=round(seconds, 1)
        )
        if fixed <= SHARE * each * found.steps:
            break
    return found


def _costs(shape: Plan, speeds: dict[str, Speed], validations: int, workers: int) -> tuple[float, float]:
    """(seconds that do not depend on the steps, seconds for each step), of all workers together."""
    chosen = [speeds[name] for name in shape.models]
    step, valid, test = (_usual([getattr(s, part) for s in chosen]) for part in ("step", "valid", "test"))
    runs = shape.finalists * shape.seeds
    idle = -(-runs // workers) * workers / runs  # the last runs leave workers without one
    if not shape.screened:
        return idle * runs * (START + validations * valid + test), idle * runs * step
    first, second = shape.rates / SCREEN, shape.halved * (1 / MIDDLE - 1 / SCREEN)
    last = idle * shape.finalists * (shape.seeds - 1 / MIDDLE)
    share = first * len(chosen) + second + last  # of a whole run, that all of them are together
    jobs = shape.rates * len(chosen) + shape.halved + runs
    fixed = jobs * START + idle * runs * test + validations * valid * share
    return fixed, first * sum(s.step for s in chosen) + (second + last) * step


def _usual(values: Sequence[float]) -> float:
    """Which models go on is not known; this mean leans towards the slow ones."""
    return float((sum(v**4 for v in values) / len(values)) ** 0.25)


def _too_small(speeds: dict[str, Speed], asked: Asked) -> NoReturn:
    fast = min(speeds, key=lambda name: speeds[name].step)
    epoch = asked.epoch or ENDLESS
    what = "an epoch" if asked.epoch else f"{epoch} steps"
    needs = f"{what} of {fast}, the fastest model, takes about {clock(epoch * speeds[fast].step)} here"
    told = f"the budget is too small: {needs}; reading, measuring and the report take {clock(asked.spent)}"
    for budget in (60 * m for m in (1, 2, 5, 10, 20, 30, 60, 120, 240, 480, 1440, 2880, 10080)):
        fits = _fitting(speeds, replace(asked, seconds=budget - asked.spent))
        if fits is not None and budget > asked.seconds + asked.spent:
            some = f"{fits.steps:,} steps of {len(fits.models)} model{'s' * (len(fits.models) > 1)}"
            raise UserError(f"{told}; --budget {clock(budget)} is enough for {some}")
    raise UserError(f"{told}; use less data")


def clock(seconds: float) -> str:
    """90s, 10m, 2h."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds >= 2 * size or seconds == size:
            return f"{round(seconds / size, 1):g}{unit}"
    return f"{seconds:.2g}s" if seconds < 10 else f"{seconds:.0f}s"
