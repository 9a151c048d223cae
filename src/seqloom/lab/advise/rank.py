"""From rules and trials to an order of models.

    points = sum of what the rules that hold give the model + its place in the race

The race is the trials' scores on held-out examples after equal time: how far a model is above the median, in units of
what chance makes of such a score, and at most RACE either way; less after few steps. Where no trial got off the ground
it says nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from seqloom.lab.advise.baseline import Baseline
from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.rule import Fired
from seqloom.lab.advise.trial import Trial
from seqloom.layers.registry import BOTH

RACE = 1.5
STEPS, FULL = 25, 200  # below which a trial is no more than timed; from which the race counts fully
LEARNED = 0.25  # of the way from the trivial answer to the linear one: less, and the race says nothing
RELATIVE = 0.05  # of a loss: what chance makes of it


def points(name: str, rules: Sequence[Fired]) -> float:
    """What the rules say for a model and its forms."""
    return sum(given(name, fired) for fired in rules)


def given(name: str, fired: Fired) -> float:
    """By the most particular name that the rule has: gru:2 of bi_gru:2, bi_gru, gru."""
    model = name.partition(":")[0]
    for known in (name, model, model.removeprefix(BOTH)):
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
