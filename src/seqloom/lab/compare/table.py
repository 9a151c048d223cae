"""One row for every baseline and every model: what it reaches, what it costs, how far it came."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from seqloom.lab.compare import rows as stored
from seqloom.lab.compare.baselines.known import baselines
from seqloom.lab.compare.lead import Drawn, Known, apart, drawn, known
from seqloom.lab.compare.metric import Metric, metric, rank
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.work import Trial, baseline_key, latency_key


@dataclass(frozen=True)
class Row:
    """What is not known is None."""

    name: str  # as --models takes it, or a baseline's
    label: str
    baseline: bool
    note: str = ""
    valid: float | None = None
    rank: tuple[float, float] = (math.inf, math.inf)  # on the validation rows; low is good
    test: Known | None = None
    behind: Known | None = None  # this one minus the best trained model, on the test rows
    seeds: int = 0
    parameters: int | None = None
    core: int | None = None
    lr: float | None = None
    seconds: float | None = None  # of one training
    latency: tuple[float, float] | None = None  # seconds for one sequence, for 64
    memory: int | None = None  # bytes in training
    left_out: bool = False  # for lack of time


@dataclass(frozen=True, eq=False)
class Table:
    """The rows, those that did better on validation first; the metric; what tells the rows apart."""

    rows: list[Row]
    metric: Metric
    drawn: dict[str, Drawn]

    @property
    def models(self) -> list[Row]:
        """Those that were trained to the end."""
        return [row for row in self.rows if row.test is not None and not row.baseline]

    @property
    def baselines(self) -> list[Row]:
        return [row for row in self.rows if row.test is not None and row.baseline]


def table(found: Comparison) -> Table:
    """As far as the comparison has come."""
    pairs = [*_baselines(found), *_models(found)]
    chosen = metric(found.task.kind, next((valid for _, valid, _ in pairs if valid), {}))
    folders = {row.name: [stored.load(folder) for folder in tests] for row, _, tests in pairs if tests}
    under = drawn(folders, chosen, found.task.overlap)
    made = []
    for row, valid, _ in pairs:
        test = known(under[row.name]) if row.name in under else None
        order = rank(found.task.kind, valid) if valid else row.rank
        made.append(replace(row, valid=valid.get(chosen.name), rank=order, test=test))
    made.sort(key=lambda row: (row.test is None, row.rank))
    first = next((row for row in made if row.test is not None and not row.baseline), None)
    if first is not None:
        others = {row.name: apart(under[row.name], under[first.name]) for row in made if row.test is not None}
        made = [replace(row, behind=others.get(row.name) if row is not first else None) for row in made]
    return Table(made, chosen, under)


Found = tuple[Row, Mapping[str, Any], list[Path]]  # a row, its validation, where its test rows are


def _baselines(found: Comparison) -> Iterator[Found]:
    for name in baselines(found.task):
        result = found.results.get(baseline_key(name))
        if result is None:
            continue
        row = Row(name, name, baseline=True)
        if result.value is None:
            yield replace(row, note=f"failed: {result.failed}"), {}, []
            continue
        value = result.value
        waited = (value["latency"]["one"], value["latency"]["many"])
        size = value["parameters"]
        row = replace(row, parameters=size, core=size, seconds=value["seconds"], latency=waited)
        yield row, value["valid"], [found.folder / "jobs" / baseline_key(name)]


def _models(found: Comparison) -> Iterator[Found]:
    for name, candidate in found.candidates.items():
        size, speed = found.sizes.get(name), found.speeds.get(name)
        row = Row(name, candidate.label(size.hidden) if size else name, baseline=False)
        if size:
            row = replace(row, parameters=size.parameters, core=size.core, memory=speed.memory if speed else None)
        if name in found.failed:
            yield replace(row, note=f"failed: {found.failed[name]}"), {}, []
        elif found.plan is not None and name not in found.plan.models:
            yield replace(row, left_out=True), {}, []
        elif found.trials.get(name):
            yield _trained(found, row)


def _trained(found: Comparison, row: Row) -> Found:
    """The finals where it was in them, else its best trial."""
    assert found.plan is not None
    finals = next((ts for ts in found.finalists if ts[0].candidate.name == row.name), [])
    done = [(t, folder) for t in finals if (folder := found.final(t))]
    trials = [t for t, _ in done] or [t for t in found.trials[row.name] if found.last(t)]
    if not trials:
        why = next((why for t in found.trials[row.name] if (why := found.reason(t))), "")
        return replace(row, note=f"failed: {why}" if why else "not trained yet"), {}, []
    trials = trials if done else [min(trials, key=lambda t: rank(found.task.kind, _last(found, t)["valid"]))]
    values = [_last(found, t) for t in trials]
    waited = found.results.get(latency_key(row.name))
    times = None if waited is None or waited.value is None else (waited.value["one"], waited.value["many"])
    names = [n for n, v in values[0]["valid"].items() if isinstance(v, float)]
    valid = {
        n: fmean(known) for n in names if (known := [v["valid"][n] for v in values if v["valid"].get(n) is not None])
    }
    why = next((why for t in finals if (why := found.reason(t))), "")
    step = max(v["step"] for v in values)
    note = "" if done else f"stopped after {step:,} of {found.plan.steps:,} steps"
    made = replace(
        row,
        label=trials[0].candidate.label(trials[0].hidden),
        note=f"failed with a seed: {why}" if why else note,
        seeds=len(done),
        lr=trials[0].choice.lr,
        seconds=fmean(v["seconds"] for v in values),
        latency=times,
    )
    return made, valid, [folder for _, folder in done]


def _last(found: Comparison, trial: Trial) -> dict[str, Any]:
    value = found.last(trial)
    assert value is not None
    return value
