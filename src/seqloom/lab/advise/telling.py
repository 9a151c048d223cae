"""Advice for a person: a table of facts, the models in order with what speaks for them, and the commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqloom.lab.advise.advice import Advice, Advised
from seqloom.lab.advise.curve import SHARE, Curve
from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.settings import LINEAR, compare_command, train_command
from seqloom.lab.compare.plan import format_seconds

FIRST = 3  # models that a person should try


def known(facts: Facts, gradient_steps: int) -> list[dict[str, str]]:
    """Rows of a table."""
    rows = {
        "task": f"{facts.kind} ({facts.topology})",
        "examples": f"{_count(facts.examples)} to train on, {facts.sampled:,} looked at",
        "lengths": f"median {facts.median:,.0f}, 95% up to {facts.most:,.0f}, longest {facts.longest:,}",
        "input": f"{facts.unit}, {facts.width:,} {'different' if facts.text else 'a step'}",
        "target": _target(facts),
        "noise": _noise(facts),
        "season": f"{facts.season} steps" if facts.season else "",
        "linear": _linear(facts),
        "information": _reach(facts.information, "about a target"),
        "gradient": f"{_reach(facts.gradient, 'of a small GRU')}, trained for {gradient_steps} steps",
        "machine": facts.device,
    }
    return [{"what": what, "here": here} for what, here in rows.items() if here]


def _count(examples: int | None) -> str:
    return "endlessly many" if examples is None else f"{examples:,}"


def _target(facts: Facts) -> str:
    if facts.commonest is None or facts.rarest is None:
        what = {"regress": "numbers", "forecast": "numbers a step"}.get(facts.kind, "different")
        return f"{facts.outputs:,} {what}"
    balance = f"the commonest has {facts.commonest:.1%}, the rarest {facts.rarest:.1%}"
    return f"{facts.outputs:,} {'tags' if facts.kind == 'tag' else 'classes'}; {balance}"


def _noise(facts: Facts) -> str:
    what = "tokens by themselves" if facts.kind == "tag" else "equal inputs"
    parts = [f"{what} leave {facts.conflict:.1%} of targets open" if facts.conflict is not None else ""]
    parts += [f"the nearest example is wrong {facts.nearest:.1%}" if facts.nearest is not None else ""]
    return "; ".join(part for part in parts if part)


def _linear(facts: Facts) -> str:
    b = facts.baseline
    if b is None:
        return "no linear model writes a sequence"
    unordered = f", without the order of tokens {b.bag:.3f}" if b.bag is not None else ""
    return f"{b.metric} {b.linear:.3f} ({b.how}){unordered}; {b.trivially} {b.trivial:.3f}"


def _reach(curve: Curve, what: str) -> str:
    if curve.reach is None:
        return f"no single step says anything {what}"
    ahead = f", {curve.ahead:.0%} of it after the step" if curve.ahead > 0 else ""
    return f"{SHARE:.0%} {what} within {curve.reach:,} steps{ahead}"


def ranking(advice: Advice) -> list[dict[str, Any]]:
    """Rows of a table, the best first."""
    return [
        {
            "model": m.name,
            "size": _size(m),
            "time": "seconds" if m.name == LINEAR else _time(m.seconds),
            "memory": _memory(m.trial.bytes),
            "after a moment": _score(advice, m),
            "points": round(m.points, 2) if m.points > float("-inf") else None,
            "why": m.trial.failed or "; ".join(m.reasons),
        }
        for m in advice.models
    ]


def _size(m: Advised) -> str:
    if m.settings is None:
        return ""
    parameters = f", {m.trial.parameters:,} numbers" if m.trial.parameters else ""
    return f"{m.settings.layers}x{m.settings.hidden}{parameters}"


def _time(seconds: float | None) -> str:
    return "not measured" if seconds is None else format_seconds(seconds)


def _memory(count: int) -> str:
    """In as many digits as a small model needs to be more than nothing."""
    return f"{count / 1e6:,.{1 if count < 10e6 else 0}f} MB" if count else ""


def _score(advice: Advice, m: Advised) -> str:
    b = advice.facts.baseline
    if m.name == LINEAR and b is not None:
        return f"{b.linear:.3f}"
    return f"{m.trial.score:.3f} in {m.trial.steps} steps" if m.trial.score == m.trial.score else ""


def rules(advice: Advice) -> list[str]:
    """A paragraph for every rule that holds."""
    lines = []
    for f in advice.rules:
        lines.append(f"{f.rule.name} ({f.rule.seed}): {f.rule.says}")
        lines.append(f"    here      {f.because}")
        if f.reason:
            lines.append(f"    measured  {f.reason}")
    return lines


def sentence(advice: Advice) -> str:
    """What to do, in a sentence."""
    first, b = advice.models[0], advice.facts.baseline
    if first.name == LINEAR and b is not None:
        return (
            f"No recurrent or attention model is called for yet: {b.how} has {b.metric} {b.linear:.3f} on a sample. "
            f"If that is not enough, {_listed(advice.models[1:FIRST])} may be better."
        )
    return f"Try {first.name} first; {_listed(advice.models[1:FIRST])} may be better."


def _listed(models: list[Advised]) -> str:
    return " or ".join(m.name for m in models)


def commands(advice: Advice, data: str, options: Mapping[str, Any]) -> list[str]:
    """To compare the first ones, and to train the first sequence model."""
    first = [m for m in advice.models[:FIRST] if m.settings is not None]
    best = next(m.settings for m in advice.models if m.settings is not None)
    return [compare_command(data, options, [m.name for m in first]), train_command(data, options, best)]
