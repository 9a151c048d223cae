"""Collect the results of a comparison: one row for every baseline and every model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.choice import mark_choice
from seqloom.lab.compare.folds import find_common_folds, join_folds
from seqloom.lab.compare.jobs import baseline_key, latency_key
from seqloom.lab.compare.plan import longer_budget
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.search import Search, rank
from seqloom.lab.compare.significance import bootstrap, estimate
from seqloom.lab.console import format_seconds
from seqloom.lab.kinds.baselines.registry import baselines
from seqloom.lab.kinds.registry import kind_of


def collect_results(comparison: Search) -> Results:
    """Collect the results so far."""
    entries = [*_collect_baselines(comparison), *_collect_models(comparison)]
    metric = comparison.metric
    folders_of = {row.name: folders for row, _, folders in entries if folders}
    by_fold = {name: {k: row_scores.load(f) for k, f in folders.items()} for name, folders in folders_of.items()}
    columns = {name: list(seeds.values()) for name, seeds in by_fold.items()}
    folds: list[int] = []
    validated: dict[bool, list[int]] = {}  # folds by whether a row is a baseline
    if comparison.folds > 1:
        columns, folds = join_folds(by_fold)
        for is_baseline in (True, False):
            valids_of = {row.name: valids for row, valids, tested in entries if tested and row.baseline == is_baseline}
            validated[is_baseline] = find_common_folds(valids_of)[1]
    bootstraps = bootstrap(columns, metric, comparison.task.overlap)
    tested = next((len(seeds[0][next(iter(seeds[0]))]) for seeds in columns.values()), 0)
    rows = []
    for row, valids, _ in entries:
        # Baselines may have more folds than the models, which need more time: all of them decide which one is best.
        common = [v for k, v in valids.items() if k in validated.get(row.baseline, ())]
        valid = _mean_metrics(common or list(valids.values()))
        test = estimate(bootstraps[row.name]) if row.name in bootstraps else None
        order = rank(metric, valid) if valid else row.rank
        rows.append(replace(row, valid=valid.get(metric.name), rank=order, test=test))
    rows.sort(key=lambda row: (row.test is None, row.rank))
    plan = comparison.plan
    results = Results(rows, metric, bootstraps, comparison.settings.margin, tested, overlap=comparison.task.overlap)
    results = replace(results, example=kind_of(comparison.task).row, ranking_rows=_count_ranking_rows(comparison))
    if comparison.folds > 1:
        results = replace(results, folds=(len(folds), comparison.folds))
    if plan is not None:
        short = plan.is_short or bool(comparison.skipped) or comparison.is_out_of_time
        results = replace(results, epochs=plan.epochs, is_short=short, more=plan.more)
    is_unplanned = comparison.is_out_of_time if plan is None else not (plan.models or plan.more or comparison.failed)
    if is_unplanned and comparison.settings.steps is None:
        longer = format_seconds(longer_budget(comparison.settings.seconds))
        results = replace(results, is_short=True, more=f"--budget {longer} would leave time to train models")
    return mark_choice(results)


# A row, its validation metrics and the folders of its test rows; both by seed or fold.
Entry = tuple[Row, Mapping[int, Mapping[str, Any]], Mapping[int, Path]]


def _collect_baselines(comparison: Search) -> Iterator[Entry]:
    for name in baselines(comparison.task):
        result = comparison.results.get(baseline_key(name))
        row = Row(name, name, baseline=True)
        if result is None:
            if comparison.is_out_of_time:
                yield replace(row, left_out=True), {}, {}
            continue
        if result.value is None:
            yield replace(row, note=f"failed: {result.failed}"), {}, {}
            continue
        value: dict[str, Any] = result.value
        values = {0: value}
        for k in range(1, comparison.folds):
            other = comparison.results.get(baseline_key(name, k))
            if other is not None and other.value is not None:
                values[k] = other.value
        latency = (value["latency"]["one"], value["latency"]["many"])
        size = value["parameters"]
        rows = value.get("rows")
        note = "" if rows is None else f"fitted to {rows:,} of {comparison.task.splits['train'].size:,} rows"
        seconds = fmean(v["seconds"] for v in values.values())
        row = replace(row, note=note, parameters=size, core=size, seconds=seconds, latency=latency)
        if comparison.folds > 1:
            row = replace(row, seeds=len(values))
        folders = {k: comparison.folder / "jobs" / baseline_key(name, k) for k in values}
        valids = {k: v["valid"] for k, v in values.items()}
        if _count_ranking_rows(comparison):
            valids = {0: value["parts"]["valid"]}
        yield row, valids, folders


def _count_ranking_rows(comparison: Search) -> int:
    """Return how many rows rank the baselines beside the validation rows; 0 unless each had the time for it."""
    jobs = (comparison.results.get(baseline_key(name)) for name in baselines(comparison.task))
    parts = [job.value.get("parts") or {} for job in jobs if job is not None and job.value is not None]
    return min((part.get("rows", 0) for part in parts), default=0)


def _collect_models(comparison: Search) -> Iterator[Entry]:
    for name, candidate in comparison.candidates.items():
        size, speed = comparison.sizes.get(name), comparison.speeds.get(name)
        row = Row(name, candidate.label(size.hidden) if size else name, baseline=False)
        if size:
            row = replace(row, parameters=size.parameters, core=size.core, memory=speed.memory if speed else None)
        if name in comparison.failed:
            yield replace(row, note=f"failed: {comparison.failed[name]}"), {}, {}
        elif name not in comparison.plan.models if comparison.plan is not None else comparison.is_out_of_time:
            yield replace(row, left_out=True), {}, {}
        elif comparison.trials.get(name):
            yield _collect_model(comparison, row)


def _collect_model(comparison: Search, row: Row) -> Entry:
    """Collect the final trainings of a model, or its best trial if it did not reach the finals."""
    assert comparison.plan is not None
    finals = comparison.finals_of(row.name)
    done = [(t, folder) for t in finals if (folder := comparison.final_folder(t))]
    trials = [t for t, _ in done] or [t for t in comparison.trials[row.name] if comparison.latest_value(t)]
    if not trials:
        why = next((why for t in comparison.trials[row.name] if (why := comparison.failure_of(t))), "")
        is_skipped = not why and (row.name in comparison.skipped or comparison.is_out_of_time)
        return replace(row, note=f"failed: {why}" if why else "not trained yet", left_out=is_skipped), {}, {}
    trials = trials if done else [min(trials, key=comparison.rank_of)]
    values = [comparison.latest_value(t) or {} for t in trials]
    latency = comparison.results.get(latency_key(row.name))
    times = None if latency is None or latency.value is None else (latency.value["one"], latency.value["many"])
    valid = {t.seed: v["valid"] for t, v in zip(trials, values, strict=True)}
    why = next((why for t in finals if (why := comparison.failure_of(t))), "")
    step = max(v["step"] for v in values)
    stopped = f"stopped after {step:,} of {comparison.plan.steps:,} steps"
    note = "" if done else stopped
    if any(v.get("is_cut") for v in values):
        note = f"{stopped}: no time left"
    row = replace(
        row,
        label=trials[0].candidate.label(trials[0].hidden),
        note=f"failed for one seed: {why}" if why else note,
        seeds=len(done),
        lr=trials[0].settings.lr,
        seconds=fmean(v["seconds"] for v in values),
        latency=times,
    )
    return row, valid, {t.seed: folder for t, folder in done}


def _mean_metrics(values: list[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the mean of each metric over seeds or folds; None if it is unknown in all of them."""
    means: dict[str, float | None] = {}
    for name in values[0] if values else ():
        known = [v[name] for v in values if isinstance(v.get(name), (int, float))]
        means[name] = fmean(known) if known else None
    return means
