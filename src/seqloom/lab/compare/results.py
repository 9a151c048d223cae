"""The results of a comparison: one row for every baseline and every model, with its quality and its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.baselines.registry import baselines
from seqloom.lab.compare.jobs import baseline_key, latency_key
from seqloom.lab.compare.metric import RatioMetric, choose_metric, rank
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.significance import Bootstrap, Estimate, bootstrap, estimate, estimate_difference


@dataclass(frozen=True)
class Row:
    """One baseline or model; unknown values are None."""

    name: str  # as --models takes it, or a baseline's
    label: str
    baseline: bool
    note: str = ""
    valid: float | None = None
    rank: tuple[float, float] = (math.inf, math.inf)  # on the validation rows; low is good
    test: Estimate | None = None
    behind: Estimate | None = None  # this one minus the best trained model, on the test rows
    seeds: int = 0
    parameters: int | None = None
    core: int | None = None  # parameters without embeddings and output layers over tokens
    lr: float | None = None
    seconds: float | None = None  # of one training
    latency: tuple[float, float] | None = None  # seconds for one sequence, for 64
    memory: int | None = None  # bytes in training
    left_out: bool = False  # for lack of time


@dataclass(frozen=True, eq=False)
class Results:
    """The rows, sorted by their validation metric; the metric; the bootstrap of each row's test metric."""

    rows: list[Row]
    metric: RatioMetric
    bootstraps: dict[str, Bootstrap]

    @property
    def models(self) -> list[Row]:
        """Models that were trained to the end."""
        return [row for row in self.rows if row.test is not None and not row.baseline]

    @property
    def baselines(self) -> list[Row]:
        return [row for row in self.rows if row.test is not None and row.baseline]

    @property
    def best_baseline(self) -> Row | None:
        return min(self.baselines, key=lambda row: row.rank, default=None)

    def difference(self, one: Row, other: Row) -> Estimate:
        """Estimate one - other on the test rows."""
        return estimate_difference(self.bootstraps[one.name], self.bootstraps[other.name])


def collect_results(comparison: Comparison) -> Results:
    """Collect the results so far."""
    kind = comparison.task.kind
    entries = [*_collect_baselines(comparison), *_collect_models(comparison)]
    metric = choose_metric(kind, next((valid for _, valid, _ in entries if valid), {}))
    columns = {row.name: [row_scores.load(folder) for folder in folders] for row, _, folders in entries if folders}
    bootstraps = bootstrap(columns, metric, comparison.task.overlap)
    rows = []
    for row, valid, _ in entries:
        test = estimate(bootstraps[row.name]) if row.name in bootstraps else None
        order = rank(kind, valid) if valid else row.rank
        rows.append(replace(row, valid=valid.get(metric.name), rank=order, test=test))
    rows.sort(key=lambda row: (row.test is None, row.rank))
    results = Results(rows, metric, bootstraps)
    if not results.models:
        return results
    best, *_ = results.models
    compared = {r.name: results.difference(r, best) for r in rows if r.test is not None and r is not best}
    return replace(results, rows=[replace(row, behind=compared.get(row.name)) for row in rows])


Entry = tuple[Row, Mapping[str, Any], list[Path]]  # a row, its validation metrics, folders of its test rows


def _collect_baselines(comparison: Comparison) -> Iterator[Entry]:
    for name in baselines(comparison.task):
        result = comparison.results.get(baseline_key(name))
        if result is None:
            continue
        row = Row(name, name, baseline=True)
        if result.value is None:
            yield replace(row, note=f"failed: {result.failed}"), {}, []
            continue
        value = result.value
        latency = (value["latency"]["one"], value["latency"]["many"])
        size = value["parameters"]
        row = replace(row, parameters=size, core=size, seconds=value["seconds"], latency=latency)
        yield row, value["valid"], [comparison.folder / "jobs" / baseline_key(name)]


def _collect_models(comparison: Comparison) -> Iterator[Entry]:
    for name, candidate in comparison.candidates.items():
        size, speed = comparison.sizes.get(name), comparison.speeds.get(name)
        row = Row(name, candidate.label(size.hidden) if size else name, baseline=False)
        if size:
            row = replace(row, parameters=size.parameters, core=size.core, memory=speed.memory if speed else None)
        if name in comparison.failed:
            yield replace(row, note=f"failed: {comparison.failed[name]}"), {}, []
        elif comparison.plan is not None and name not in comparison.plan.models:
            yield replace(row, left_out=True), {}, []
        elif comparison.trials.get(name):
            yield _collect_model(comparison, row)


def _collect_model(comparison: Comparison, row: Row) -> Entry:
    """Collect the final trainings of a model, or its best trial if it did not reach the finals."""
    assert comparison.plan is not None
    finals = next((ts for ts in comparison.finalists if ts[0].candidate.name == row.name), [])
    done = [(t, folder) for t in finals if (folder := comparison.final_folder(t))]
    trials = [t for t, _ in done] or [t for t in comparison.trials[row.name] if comparison.latest_value(t)]
    if not trials:
        why = next((why for t in comparison.trials[row.name] if (why := comparison.failure_of(t))), "")
        return replace(row, note=f"failed: {why}" if why else "not trained yet"), {}, []
    trials = trials if done else [min(trials, key=comparison.rank_of)]
    values = [comparison.latest_value(t) or {} for t in trials]
    latency = comparison.results.get(latency_key(row.name))
    times = None if latency is None or latency.value is None else (latency.value["one"], latency.value["many"])
    names = [n for n, v in values[0]["valid"].items() if isinstance(v, float)]
    valid = {
        n: fmean(known) for n in names if (known := [v["valid"][n] for v in values if v["valid"].get(n) is not None])
    }
    why = next((why for t in finals if (why := comparison.failure_of(t))), "")
    step = max(v["step"] for v in values)
    note = "" if done else f"stopped after {step:,} of {comparison.plan.steps:,} steps"
    row = replace(
        row,
        label=trials[0].candidate.label(trials[0].hidden),
        note=f"failed for one seed: {why}" if why else note,
        seeds=len(done),
        lr=trials[0].settings.lr,
        seconds=fmean(v["seconds"] for v in values),
        latency=times,
    )
    return row, valid, [folder for _, folder in done]
