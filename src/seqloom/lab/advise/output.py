"""Advice as tables and text for the console, as commands, and as JSON."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from seqloom.core.plurals import count, list_some
from seqloom.lab.advise.advice import LINEAR, Advice, RankedModel
from seqloom.lab.advise.curve import REACH_SHARE, DistanceCurve
from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.measurements import load_measurements
from seqloom.lab.advise.rules import MatchedRule
from seqloom.lab.console import format_flags, format_seconds
from seqloom.lab.kinds.settings import TrainSettings

RECOMMENDED = 3  # models to try first


def facts_table(facts: Facts, gradient_steps: int) -> list[dict[str, str]]:
    """Build a table of the facts, a row for each."""
    rows = {
        "task": f"{facts.kind} ({facts.topology})",
        "examples": f"{_count(facts.examples)} for training; {facts.sampled:,} examined, with validation rows",
        "lengths": f"median {facts.median:,.0f}, 95% up to {facts.most:,.0f}, longest {facts.longest:,}",
        "input": f"{facts.unit}, {facts.width:,} {'distinct' if facts.text else 'per step'}",
        "target": _target(facts),
        "noise": _noise(facts),
        "season": f"{facts.season} steps" if facts.season else "",
        "linear model": _linear(facts),
        "information": _reach(facts.information, "information about a target"),
        "gradient": f"{_reach(facts.gradient, 'gradient')} (a small GRU after {gradient_steps} training steps)",
        "machine": facts.device,
    }
    return [{"fact": name, "value": value} for name, value in rows.items() if value]


def _count(examples: int | None) -> str:
    return "unlimited" if examples is None else f"{examples:,}"


def _target(facts: Facts) -> str:
    if facts.commonest is None or facts.rarest is None:
        per_step = " per step" if facts.traits.spans_rows else ""
        return count(facts.outputs, facts.traits.noun) + per_step
    balance = f"most frequent {facts.commonest:.1%}, rarest {facts.rarest:.1%}"
    return f"{facts.outputs:,} {'classes' if facts.traits.is_per_row else 'tags'}; {balance}"


def _noise(facts: Facts) -> str:
    conflict = (
        "targets differ between equal inputs"
        if facts.traits.is_per_row
        else "tags differ from the most frequent of their token"
    )
    parts = [f"{facts.conflict:.1%} of {conflict}" if facts.conflict is not None else ""]
    parts += [f"nearest-neighbour error {facts.nearest:.1%}" if facts.nearest is not None else ""]
    return "; ".join(part for part in parts if part)


def _linear(facts: Facts) -> str:
    b = facts.baseline
    if b is None:
        return "none for this kind of task"
    unordered = f", {b.bag:.3f} without token order" if b.bag is not None else ""
    return f"{b.title} {b.linear:.3f} ({b.how}){unordered}; {b.trivially}: {b.trivial:.3f}"


def _reach(curve: DistanceCurve, what: str) -> str:
    if curve.reach is None:
        return f"no single step has any {what}"
    ahead = f", {curve.ahead:.0%} of it after the step" if curve.ahead > 0 else ""
    return f"{REACH_SHARE:.0%} of the {what} within {count(curve.reach, 'step')}{ahead}"


def ranking_table(advice: Advice) -> list[dict[str, Any]]:
    """Build a table of the models, the best first, without those about which nothing is known."""
    return [
        {
            "model": m.name,
            "size": _size(m),
            "training time": "seconds" if m.name == LINEAR else _time(m.seconds),
            "memory": _memory(m.trial.bytes),
            "short training": _score(advice, m),
            "points": f"{m.points:.2f}" if m.points > float("-inf") else None,
            "reasons": f"failed: {m.trial.failed}" if m.trial.failed else "; ".join(m.reasons),
        }
        for m in advice.models
        if not _is_unknown(m)
    ]


def describe_unknown(advice: Advice) -> str:
    """Name the models that were not tried for lack of time and that no rule mentions; "" if there are none."""
    names = [m.name for m in advice.models if _is_unknown(m)]
    return f"Not tried for lack of time: {list_some(names)}. --seconds allows more." if names else ""


def _is_unknown(m: RankedModel) -> bool:
    return m.name != LINEAR and m.seconds is None and not m.trial.failed and not m.reasons


def _size(m: RankedModel) -> str:
    if m.settings is None:
        return ""
    parameters = f", {m.trial.parameters:,} parameters" if m.trial.parameters else ""
    return f"{m.settings.layers}x{m.settings.hidden}{parameters}"


def _time(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)


def _memory(count: int) -> str:
    """Format bytes as MB, with a decimal for a small model."""
    return f"{count / 1e6:,.{1 if count < 10e6 else 0}f} MB" if count else ""


def _score(advice: Advice, m: RankedModel) -> str:
    b = advice.facts.baseline
    if m.name == LINEAR and b is not None:
        return f"{b.linear:.3f}"
    return f"{m.trial.score:.3f} after {count(m.trial.steps, 'step')}" if math.isfinite(m.trial.score) else ""


def describe_rules(advice: Advice) -> list[str]:
    """Describe every rule that applies, in a few lines each."""
    lines = []
    for matched in advice.rules:
        lines.append(f"{matched.rule.name} ({matched.rule.source}): {matched.rule.says}")
        lines.append(f"    here      {matched.because}")
        if matched.reason:
            lines.append(f"    measured  {matched.reason}")
    return lines


def summarise(advice: Advice) -> str:
    """Recommend what to do, in a sentence or two."""
    first, b = advice.models[0], advice.facts.baseline
    others = " or ".join(m.name for m in advice.models[1:RECOMMENDED])
    if first.name == LINEAR and b is not None:
        return (
            f"Start with a linear model: {b.how} reaches {b.title} {b.linear:.3f} on a sample. "
            f"If that is not enough, {others} may be better."
        )
    return f"Try {first.name} first; {others} may be better."


def build_commands(advice: Advice, data: str, options: Mapping[str, Any]) -> list[str]:
    """Build the commands that compare the first models, and that train the best sequence model."""
    # Baselines are part of every comparison, so `linear` need not be named.
    names = [m.name for m in advice.models[:RECOMMENDED] if m.settings is not None]
    best = next(m.settings for m in advice.models if m.settings is not None)
    flags = format_flags(options)
    models = ["--models", ",".join(names)] if names else []
    compare, train = ["compare", data, *flags, *models], ["train", data, *flags, *_train_flags(best)]
    return [shlex.join(["seqloom", *words]) for words in (compare, train)]


def _train_flags(settings: TrainSettings) -> list[str]:
    """Return the model, and the settings that differ from the defaults of `seqloom train`, as flags."""
    defaults = TrainSettings().model_dump()
    values = settings.model_dump().items()
    return format_flags({name: value for name, value in values if value != defaults[name] or name == "model"})


def build_document(advice: Advice) -> dict[str, Any]:
    """Build the JSON document; all numbers are finite, and every measurement has its origin."""
    return {
        "facts": advice.facts.document(),
        "gradient_steps": advice.gradient_steps,
        "rules": [_rule_document(matched) for matched in advice.rules],
        "models": [_model_document(model) for model in advice.models],
        "seconds": advice.seconds,
    }


def _rule_document(matched: MatchedRule) -> dict[str, Any]:
    rule = matched.rule
    return {
        "rule": rule.name,
        "source": rule.source,
        "says": rule.says,
        "here": matched.because,
        "measured": matched.reason or None,
        "points": dict(rule.points),
        "records": {key: load_measurements().source(key) for key in rule.keys} if matched.reason else {},
    }


def _model_document(model: RankedModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "points": _finite_or_none(model.points),
        "race": model.race,
        "reasons": list(model.reasons),
        "settings": None if model.settings is None else model.settings.model_dump(exclude_unset=True),
        "seconds": model.seconds,
        "trial": {name: _finite_or_none(value) for name, value in asdict(model.trial).items()},
    }


def _finite_or_none(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
