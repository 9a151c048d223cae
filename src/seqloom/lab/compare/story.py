"""The comparison as a page and as a document."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from seqloom.lab.compare import rows as stored
from seqloom.lab.compare.baselines.known import BLIND
from seqloom.lab.compare.examples import errors
from seqloom.lab.compare.lead import apart
from seqloom.lab.compare.leaderboard import caption, leaderboard
from seqloom.lab.compare.plan import clock
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.table import Row, Table
from seqloom.lab.compare.work import Trial
from seqloom.lab.data.look import about, columns, space
from seqloom.lab.data.registry import TASKS
from seqloom.lab.report.page import Block, Chart, Curve, Dots, Page, Words
from seqloom.lab.report.page import Table as Shown
from seqloom.lab.stats.metrics import HIGHER_IS_BETTER
from seqloom.lab.training.run import Run
from seqloom.tools import doctor


def winner(found: Comparison, table: Table) -> Trial | None:
    """The seed of the best model that did best on validation."""
    if not table.models or found.plan is None:
        return None
    finals = next(ts for ts in found.finalists if ts[0].candidate.name == table.models[0].name)
    done = [t for t in finals if found.final(t)]
    return min(done, key=found.rank_of)


def page(found: Comparison, table: Table, finished: bool) -> Page:
    blocks: list[Block] = [Shown("Leaderboard", leaderboard(table), caption(table, *found.counted))]
    if table.models:
        values = {row.label: row.test.values for row in table.models if row.test}
        simple = min(table.baselines, key=lambda row: row.rank, default=None)
        lines = {simple.label: simple.test.mean} if simple is not None and simple.test else {}
        blocks.append(Dots("Each seed on the test rows", table.metric.name, values, lines))
    curves = _curves(found, table)
    if curves:
        rate = "log" if table.metric.name not in HIGHER_IS_BETTER else ""
        blocks.append(Chart("Learning curves", "steps", f"validation {table.metric.name}", curves, log_y=bool(rate)))
    best = winner(found, table)
    if best is not None and finished:
        folder = found.final(best)
        assert folder is not None
        model = Run.load(found.work.run(best)).model()
        blocks += errors(model, found.task, stored.load(folder), found.batch)
    if said := columns(found.task):
        blocks.append(Shown("The columns", said))
    blocks.append(Words("The data", about(found.task)))
    blocks.append(Words("How it was done", _how(found)))
    return Page(f"Models for {found.task.name}", verdict(table, finished), blocks, _facts(found))


def _curves(found: Comparison, table: Table) -> list[Curve]:
    """The first seed of every model that was trained, with its best settings."""
    curves = []
    for row in table.rows:
        trials = [t for t in found.trials.get(row.name, []) if found.last(t)]
        if not trials:
            continue
        value = found.last(min(trials, key=found.rank_of))
        lines = [line for line in (value or {}).get("curve", []) if line.get(table.metric.name) is not None]
        if lines:
            x, y = [float(line["step"]) for line in lines], [float(line[table.metric.name]) for line in lines]
            curves.append(Curve(row.label, x, y))
    return curves


def _how(found: Comparison) -> list[str]:
    plan = found.plan
    told = [
        "All models have about the same number of parameters outside of tables of tokens; baselines are fitted to the "
        "same training rows, and their regularisation is chosen on the same validation rows."
    ]
    if plan is None:
        return told
    if plan.screened:
        told.append(
            f"{len(plan.models)} models with {plan.rates} settings each were trained for {plan.first:,} steps, the "
            f"{plan.halved} better ones for {plan.second:,}, and the best {plan.finalists} for {plan.steps:,} with "
            f"{plan.seeds} seeds. A training ends after {plan.patience} validations without progress; there is one "
            f"every {plan.every:,} steps."
        )
    else:
        told.append(f"{len(plan.models)} models were trained for {plan.steps:,} steps with {plan.seeds} seeds.")
    if found.settings.steps is None:
        told.append(f"The budget was {clock(found.settings.seconds)} for {found.workers} workers.")
    return told


def _facts(found: Comparison) -> dict[str, Any]:
    return {
        "command": command(found),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": found.settings.model_dump() | {"models": list(found.candidates)},  # all, where none was named
        "data": {name: split.size for name, split in found.task.splits.items()},
        "input": space(found.task.input),
        "target": space(found.task.target),
        "hardware": doctor.hardware(),
        "versions": doctor.versions(),
    }


def command(found: Comparison) -> str:
    """The command line of this comparison."""
    data, options = found.source["data"], found.source["options"]
    words = ["seqloom", "compare", ",".join(data) if isinstance(data, list) else str(data)]
    named = "task." if str(data) in TASKS else ""
    for name, value in options.items():
        words += [f"--{named}{name}", ",".join(value) if isinstance(value, (list, tuple)) else str(value)]
    return shlex.join([*words, *found.settings.to_flags()])


def document(found: Comparison, table: Table, finished: bool) -> dict[str, Any]:
    """study.json: everything that a reader needs to believe the table, and to build it again."""
    best = winner(found, table)
    rows = [asdict(row) | {"rank": None} for row in table.rows]
    return _facts(found) | {
        "study": "compare",
        "task": {"name": found.task.name, "kind": found.task.kind},
        "metric": table.metric.name,
        "finished": finished,
        "verdict": verdict(table, finished),
        "plan": None if found.plan is None else asdict(found.plan),
        "rows": rows,
        "winner": None if best is None else best.key,
        "trainings": {
            result.key: result.value if result.value is not None else {"failed": result.failed}
            for result in sorted(found.results.values(), key=lambda r: r.key)
        },
    }


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
