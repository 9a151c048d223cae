"""The contract of a rule: a condition on facts, what it says for which models, where it comes from, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from seqloom.lab.advise.facts import Facts
from seqloom.lab.advise.measured import Measured


@dataclass(frozen=True)
class Rule:
    """`when` says what in the facts makes it hold, and "" where it does not.

    `points` are for each model by name; a name covers its forms (bi_, :2), except where a form is named itself.
    `why` is a sentence with the numbers that `keys` name; without them in the package it is left out. A rule of a
    guide whose points are 0 or less is one that measurements speak against.
    """

    name: str
    seed: str  # the document and the section
    says: str  # what the document says, in English
    when: Callable[[Facts], str]
    points: Mapping[str, float]
    why: str = ""
    keys: tuple[str, ...] = ()

    def reason(self, measured: Measured) -> str:
        """Why, with its numbers."""
        if not measured.has(*self.keys):
            return ""
        return self.why.format(*(number(measured(key)) for key in self.keys))


@dataclass(frozen=True)
class Fired:
    """A rule that holds for these facts."""

    rule: Rule
    because: str
    reason: str


def fired(rules: tuple[Rule, ...], facts: Facts, measured: Measured) -> list[Fired]:
    """Those whose condition holds, in their order."""
    told = [(rule, rule.when(facts)) for rule in rules]
    return [Fired(rule, because, rule.reason(measured)) for rule, because in told if because]


def number(value: float) -> str:
    """Three digits that count, four of larger ones."""
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.0e}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
