"""Advice as JSON: every number finite, every measured reason with where it came from."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from seqloom.lab.advise.advice import Advice, Advised
from seqloom.lab.advise.measured import measured
from seqloom.lab.advise.rule import Fired


def document(advice: Advice) -> dict[str, Any]:
    return {
        "facts": advice.facts.document(),
        "gradient_steps": advice.gradient_steps,
        "rules": [_rule(fired) for fired in advice.rules],
        "models": [_model(model) for model in advice.models],
        "seconds": advice.seconds,
    }


def _rule(fired: Fired) -> dict[str, Any]:
    rule = fired.rule
    return {
        "rule": rule.name,
        "document": rule.seed,
        "says": rule.says,
        "here": fired.because,
        "measured": fired.reason or None,
        "points": dict(rule.points),
        "sources": {key: measured().source(key) for key in rule.keys} if fired.reason else {},
    }


def _model(model: Advised) -> dict[str, Any]:
    return {
        "model": model.name,
        "points": _finite(model.points),
        "race": model.race,
        "reasons": list(model.reasons),
        "settings": None if model.settings is None else model.settings.model_dump(exclude_unset=True),
        "seconds": model.seconds,
        "trial": {name: _finite(value) for name, value in asdict(model.trial).items()},
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
