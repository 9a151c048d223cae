"""A sentence that a person can act on."""

from __future__ import annotations

from seqloom.lab.compare.baselines.known import BLIND
from seqloom.lab.compare.lead import apart
from seqloom.lab.compare.table import Row, Table


def verdict(table: Table, finished: bool = True) -> str:
    """Which one to use, and why; a lead is called one only where its interval excludes 0."""
    if not finished:
        return "Interrupted: the table shows what was finished, and nothing is decided."
    if not table.models:
        best = min(table.baselines, key=lambda row: row.rank, default=None)
        return "No model was trained to the end" + (f"; the best baseline is {best.label}." if best else ".")
    first, *rest = table.models
    simple = min(table.baselines, key=lambda row: row.rank, default=None)
    if simple is not None and not _better(table, first, simple):
        return _use_baseline(table, first, simple)
    above = "" if simple is None else f" {first.label} beats {simple.label} by {_by(table, first, simple)}."
    if not rest:
        return f"{first.label} reaches {_number(table, first)}.{above}"
    equal = [row for row in rest if not _better(table, first, row)]
    if not equal:
        cost = _latency(first, rest[0])
        return f"{first.label} leads {rest[0].label} by {_by(table, first, rest[0])}{cost}: use it.{above}"
    cheap = min([first, *equal], key=lambda row: row.latency or (float("inf"),) * 2)
    names = _listed([row.label for row in equal])
    told = f"No real lead: {first.label} ({_number(table, first)}) cannot be told from {names}"
    return f"{told}; use {cheap.label}, the fastest of them.{above}"


def _use_baseline(table: Table, first: Row, simple: Row) -> str:
    if simple.name in BLIND:
        return (
            f"Nothing was learned: the best model ({first.label}, {_number(table, first)}) does not beat "
            f"{simple.label} ({_number(table, simple)}). Give the models more time or more data."
        )
    if _better(table, simple, first):
        return (
            f"{simple.label} beats the best model ({first.label}, {_number(table, first)}) by "
            f"{_by(table, simple, first)}: use it, or give the models more time or more data."
        )
    return (
        f"{simple.label} ({_number(table, simple)}) is within the interval of the best model "
        f"({first.label}, {_number(table, first)}): use it."
    )


def _better(table: Table, one: Row, other: Row) -> bool:
    difference = apart(table.drawn[one.name], table.drawn[other.name])
    return difference.real and (difference.mean > 0) == table.metric.higher


def _by(table: Table, one: Row, other: Row) -> str:
    found, metric = apart(table.drawn[one.name], table.drawn[other.name]), table.metric
    what = metric.unit or f" in {metric.name}"
    return f"{metric.apart(found.mean)} +- {metric.apart(found.half)}{what}"


def _number(table: Table, row: Row) -> str:
    assert row.test is not None
    return f"{table.metric.name} {table.metric.shown(row.test.mean)}"


def _latency(one: Row, other: Row) -> str:
    if one.latency is None or other.latency is None or not other.latency[0]:
        return ""
    return f" at {one.latency[0] / other.latency[0]:.2g} times the latency"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
