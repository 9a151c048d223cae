"""The report page of a comparison, and its JSON document."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from seqloom.core.plurals import count
from seqloom.lab.compare import row_scores
from seqloom.lab.compare.choice import state_rule
from seqloom.lab.compare.data import whole_task
from seqloom.lab.compare.error_analysis import analyse_errors
from seqloom.lab.compare.folder import BEST, choose_name, find_run_of
from seqloom.lab.compare.folds import FEW_ROWS, FOLDS, join_folds
from seqloom.lab.compare.jobs import baseline_key
from seqloom.lab.compare.leaderboard import build_leaderboard, caption
from seqloom.lab.compare.plan import longer_budget
from seqloom.lab.compare.rows import Results, Row
from seqloom.lab.compare.search import Search
from seqloom.lab.compare.significance import Estimate
from seqloom.lab.compare.verdict import write_verdict
from seqloom.lab.console import format_seconds
from seqloom.lab.data.description import format_space, summarize_task, tabulate_columns
from seqloom.lab.data.pipeline.rows import read_original
from seqloom.lab.data.registry import TASKS
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.report.page import Chart, Curve, Dots, Page, PageBlock, Table, Words
from seqloom.lab.stats.metrics import Metric
from seqloom.lab.training.run import Run
from seqloom.tools import doctor


def build_page(comparison: Search, results: Results, finished: bool) -> Page:
    """Build the report page; errors of the recommended row are analysed if the comparison has finished in time."""
    metric = results.metric
    note = caption(results, comparison.seeds, comparison.valid_rows)
    blocks: list[PageBlock] = [Table("Leaderboard", build_leaderboard(results), note)]
    if results.models:
        title = "Test results by seed" if results.folds is None else "Test results"
        values = {row.label: row.test.values for row in results.models if row.test}
        baseline = min(results.baselines, key=lambda row: row.rank, default=None)
        lines = {baseline.label: baseline.test.mean} if baseline is not None and baseline.test else {}
        tests = {row.label: row.test for row in results.models if row.test and row.test.has_interval}
        intervals = {label: _find_interval(test, metric) for label, test in tests.items()}
        by_seed = results.folds is None
        note = "" if by_seed else "Each dot is the score of the test rows of all folds together."
        blocks.append(Dots(title, metric.title, values, lines, note=note, intervals=intervals, by_seed=by_seed))
    curves = _learning_curves(comparison, results)
    if curves:
        blocks.append(Chart("Learning curves", "steps", f"validation {metric.title}", curves, log_y=not metric.higher))
    if finished and comparison.seconds_left > comparison.slowness:
        blocks += _analyse_errors(comparison, results)
    if rows := tabulate_columns(comparison.task.columns):
        blocks.append(Table("Columns", rows))
    blocks.append(Words("Data", [_as_sentence(line) for line in summarize_task(comparison.task)]))
    blocks.append(Words("Method", _describe_method(comparison)))
    blocks.append(Words("Next", [f"{purpose}: `{command}`" for purpose, command in list_next(comparison, results)]))
    return Page(f"Models for {comparison.task.name}", write_verdict(results, finished), blocks, _facts(comparison))


def _as_sentence(line: str) -> str:
    """Turn "splits  train 9" of the terminal into "Splits: train 9", and "note    text" into "Text"."""
    label, _, text = line.partition(" ")
    text = text.strip()
    return text[0].upper() + text[1:] if label == "note" else f"{label.capitalize()}: {text}"


def _find_interval(test: Estimate, metric: Metric) -> tuple[float, float]:
    """Return the ends of a mean's interval, within the range of the metric."""
    low, high = test.mean - test.half, test.mean + test.half
    return (max(0.0, low), min(1.0, high)) if metric.percent else (low, high)


def _analyse_errors(comparison: Search, results: Results) -> list[PageBlock]:
    row = next((row for row in results.rows if row.name == results.chosen), None)
    run = None if row is None else find_run_of(comparison, row)
    folder = None if row is None else _find_scores(comparison, row)
    if run is None or folder is None:
        return []
    model, columns = Run.load(run).model(), row_scores.load(folder)
    # leave the time that the rest of the report takes
    reserve = comparison.slowness
    out_of_fold = None
    if row is not None and comparison.folds > 1:
        folders = find_folds(comparison, row)
        joined, _ = join_folds({row.name: {k: row_scores.load(folder) for k, folder in folders.items()}})
        out_of_fold = joined[row.name][0]
    is_late = lambda: comparison.seconds_left < reserve  # noqa: E731
    task = whole_task(comparison.task)
    read = lambda rows: read_original(comparison.source, task, "test", rows)  # noqa: E731
    return analyse_errors(model, comparison.task, columns, comparison.batch, is_late, out_of_fold, read)


def find_folds(comparison: Search, row: Row) -> dict[int, Path]:
    """Return the folders with the scores of the test rows of each fold."""
    if row.baseline:
        folders = {k: comparison.folder / "jobs" / baseline_key(row.name, k) for k in range(comparison.folds)}
        return {k: folder for k, folder in folders.items() if (folder / row_scores.FILE).exists()}
    return {t.seed: folder for t in comparison.finals_of(row.name) if (folder := comparison.final_folder(t))}


def _find_scores(comparison: Search, row: Row) -> Path | None:
    """Return the folder with the scores of the test rows of the run that `find_run_of` returns."""
    if row.baseline:
        return comparison.folder / "jobs" / baseline_key(row.name)
    run = find_run_of(comparison, row)
    trials = [trial for trials in comparison.finalists for trial in trials]
    return next((comparison.final_folder(t) for t in trials if comparison.job_factory.run_folder(t) == run), None)


def list_next(comparison: Search, results: Results) -> list[tuple[str, str]]:
    """List the commands to run next, each with its purpose."""
    folder = shorten_path(comparison.folder)
    kind = kind_of(comparison.task)
    file = [] if kind.continues_text else ["NEW_FILE"]
    chosen = next((row for row in results.rows if row.name == results.chosen), None)
    commands: list[tuple[str, list[str]]] = []
    if chosen is not None:
        # n-grams without a source translate and generate nothing useful, but predict
        use = Kind.command if chosen.baseline else kind.command
        if not (chosen.baseline and kind.continues_text):
            verb = "Use" if results.has_learned else "Try the best so far,"
            commands.append((f"{verb} {chosen.label}", [use, str(folder / BEST), *file]))
        other = next(
            (r for r in results.rows if r.name != results.chosen and not r.baseline and r.valid is not None), None
        )
        if other is not None:
            commands.append(
                (f"Use another one, such as {other.label}", [use, str(folder / choose_name(other.name)), *file])
            )
        commands.append(("Score it on other data", ["evaluate", str(folder / BEST), "OTHER_FILE"]))
    if comparison.settings.steps is None:
        longer = format_seconds(longer_budget(comparison.settings.seconds))
        words = shlex.split(command(comparison, settings={"budget": longer}))[1:]
        if Path(words[1]).is_absolute():
            words[1] = str(shorten_path(Path(words[1])))
        commands.append(("Compare for longer", words))
    return [(purpose, shlex.join(["seqloom", *words])) for purpose, words in commands]


def shorten_path(path: Path) -> Path:
    """Return the path relative to the working directory if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _learning_curves(comparison: Search, results: Results) -> list[Curve]:
    """Return the validation curve of every trained model: its best settings, first seed."""
    curves = []
    name = results.metric.name
    for row in results.rows:
        trials = [t for t in comparison.trials.get(row.name, []) if comparison.latest_value(t)]
        if not trials:
            continue
        value = comparison.latest_value(min(trials, key=comparison.rank_of))
        lines = [line for line in (value or {}).get("curve", []) if line.get(name) is not None]
        if lines:
            curves.append(
                Curve(row.label, [float(line["step"]) for line in lines], [float(line[name]) for line in lines])
            )
    return curves


def _describe_method(comparison: Search) -> list[str]:
    plan = comparison.plan
    paragraphs = [
        "All models have about the same number of parameters, not counting embeddings and output layers over tokens. "
        "Baselines are fitted to the same training rows; their regularisation is chosen on the same validation rows."
    ]
    if plan is None or not plan.models:
        return paragraphs
    repeats = f"in {count(plan.seeds, 'fold')}" if comparison.folds > 1 else f"with {count(plan.seeds, 'seed')}"
    if plan.is_screened:
        paragraphs.append(
            f"{count(len(plan.models), 'model')} with {count(plan.rates, 'setting')} each: trained for {plan.first:,} "
            f"steps, the best {plan.survivors} of them for {plan.second:,}, and the best {plan.finalists} "
            f"for {plan.steps:,} {repeats}. Training stops early after {plan.patience} "
            f"validations without progress; there is one every {plan.every:,} steps."
        )
    else:
        trained = "1 model was" if len(plan.models) == 1 else f"{len(plan.models)} models were"
        paragraphs.append(f"{trained} trained for {plan.steps:,} steps {repeats}.")
    if comparison.settings.steps is None:
        budget = format_seconds(comparison.settings.seconds)
        paragraphs.append(f"The budget was {budget} for {count(comparison.workers, 'worker')}.")
    return paragraphs


def _facts(comparison: Search) -> dict[str, Any]:
    return {
        "command": command(comparison),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": comparison.settings.model_dump() | {"models": list(comparison.candidates)},  # the defaults resolved
        "data": {name: split.size for name, split in comparison.task.splits.items()},
        "input": format_space(comparison.task.input),
        "target": format_space(comparison.task.target),
        "hardware": doctor.hardware(),
        "versions": doctor.versions(),
    }


def command(comparison: Search, settings: Mapping[str, Any] | None = None) -> str:
    """Return the command line of this comparison, with other `settings` if they are given."""
    data, options = comparison.source["data"], comparison.source["options"]
    words = ["seqloom", "compare", ",".join(data) if isinstance(data, list) else str(data)]
    prefix = "task." if str(data) in TASKS else ""
    for name, value in options.items():
        words += [f"--{prefix}{name}", ",".join(value) if isinstance(value, (list, tuple)) else str(value)]
    changed = dict(settings or {})
    rows = sum(split.size or FEW_ROWS for split in whole_task(comparison.task).splits.values())
    if comparison.folds == (FOLDS if rows < FEW_ROWS else 1):
        changed["folds"] = None  # the default
    return shlex.join([*words, *comparison.settings.model_copy(update=changed).to_flags()])


def build_document(comparison: Search, results: Results, finished: bool) -> dict[str, Any]:
    """Build study.json: everything needed to check the leaderboard and to reproduce it."""
    names = {row.name: choose_name(row.name) for row in results.rows if find_run_of(comparison, row)}
    return _facts(comparison) | {
        "study": "compare",
        "task": {"name": comparison.task.name, "kind": comparison.task.kind},
        "metric": results.metric.name,
        "finished": finished,
        "verdict": write_verdict(results, finished),
        "rule": state_rule(results),
        "interval_note": results.interval_note or None,
        "recommended": results.chosen or None,
        "has_learned": results.has_learned,
        "plan": None if comparison.plan is None else asdict(comparison.plan),
        "rows": [_record_row(row) | {"folder": names.get(row.name)} for row in results.rows],
        "trainings": {
            result.key: result.value if result.value is not None else {"failed": result.failed}
            for result in sorted(comparison.results.values(), key=lambda r: r.key)
        },
    }


def _record_row(row: Row) -> dict[str, Any]:
    """Return a row for JSON. JSON has no infinity, so the half-width of an unknown interval is null."""
    record = asdict(row) | {"rank": None}
    for name in ("test", "behind"):
        if record[name] is not None and not math.isfinite(record[name]["half"]):
            record[name]["half"] = None
    return record
