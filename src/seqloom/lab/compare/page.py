"""The report page of a comparison, and its JSON document."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.error_analysis import analyse_errors
from seqloom.lab.compare.jobs import CandidateTrial
from seqloom.lab.compare.leaderboard import build_leaderboard, caption, verdict
from seqloom.lab.compare.plan import format_seconds
from seqloom.lab.compare.results import Results
from seqloom.lab.compare.search import Comparison
from seqloom.lab.data.description import format_space, summarize_task, tabulate_columns
from seqloom.lab.data.registry import TASKS
from seqloom.lab.report.page import Chart, Curve, Dots, Page, PageBlock, Table, Words
from seqloom.lab.training.run import Run
from seqloom.tools import doctor


def find_winner(comparison: Comparison, results: Results) -> CandidateTrial | None:
    """Return the training of the best model whose seed did best on the validation rows."""
    if not results.models or comparison.plan is None:
        return None
    finals = next(ts for ts in comparison.finalists if ts[0].candidate.name == results.models[0].name)
    return min((t for t in finals if comparison.final_folder(t)), key=comparison.rank_of)


def build_page(comparison: Comparison, results: Results, finished: bool) -> Page:
    """Build the report page; the errors of the winner are analysed only if the comparison is finished."""
    metric = results.metric
    note = caption(results, comparison.seeds, comparison.valid_rows)
    blocks: list[PageBlock] = [Table("Leaderboard", build_leaderboard(results), note)]
    if results.models:
        values = {row.label: row.test.values for row in results.models if row.test}
        baseline = results.best_baseline
        lines = {baseline.label: baseline.test.mean} if baseline is not None and baseline.test else {}
        blocks.append(Dots("Test results by seed", metric.title, values, lines))
    curves = _learning_curves(comparison, results)
    if curves:
        blocks.append(Chart("Learning curves", "steps", f"validation {metric.title}", curves, log_y=not metric.higher))
    winner = find_winner(comparison, results)
    if winner is not None and finished:
        folder = comparison.final_folder(winner)
        assert folder is not None
        model = Run.load(comparison.job_factory.run_folder(winner)).model()
        blocks += analyse_errors(model, comparison.task, row_scores.load(folder), comparison.batch)
    if rows := tabulate_columns(comparison.task.columns):
        blocks.append(Table("Columns", rows))
    blocks.append(Words("Data", summarize_task(comparison.task)))
    blocks.append(Words("Method", _describe_method(comparison)))
    return Page(f"Models for {comparison.task.name}", verdict(results, finished), blocks, _facts(comparison))


def _learning_curves(comparison: Comparison, results: Results) -> list[Curve]:
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


def _describe_method(comparison: Comparison) -> list[str]:
    plan = comparison.plan
    paragraphs = [
        "All models have about the same number of parameters, not counting embeddings and output layers over tokens. "
        "Baselines are fitted to the same training rows; their regularisation is chosen on the same validation rows."
    ]
    if plan is None:
        return paragraphs
    if plan.is_screened:
        paragraphs.append(
            f"{len(plan.models)} models with {plan.rates} settings each were trained for {plan.first:,} steps, the "
            f"best {plan.survivors} of them for {plan.second:,}, and the best {plan.finalists} for {plan.steps:,} with "
            f"{plan.seeds} seeds. Training stops early after {plan.patience} validations without progress; there is "
            f"one every {plan.every:,} steps."
        )
    else:
        paragraphs.append(f"{len(plan.models)} models were trained for {plan.steps:,} steps with {plan.seeds} seeds.")
    if comparison.settings.steps is None:
        budget = format_seconds(comparison.settings.seconds)
        paragraphs.append(f"The budget was {budget} for {comparison.workers} workers.")
    return paragraphs


def _facts(comparison: Comparison) -> dict[str, Any]:
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


def command(comparison: Comparison) -> str:
    """Return the command line of this comparison."""
    data, options = comparison.source["data"], comparison.source["options"]
    words = ["seqloom", "compare", ",".join(data) if isinstance(data, list) else str(data)]
    prefix = "task." if str(data) in TASKS else ""
    for name, value in options.items():
        words += [f"--{prefix}{name}", ",".join(value) if isinstance(value, (list, tuple)) else str(value)]
    return shlex.join([*words, *comparison.settings.to_flags()])


def build_document(comparison: Comparison, results: Results, finished: bool) -> dict[str, Any]:
    """Build study.json: everything needed to check the leaderboard and to reproduce it."""
    winner = find_winner(comparison, results)
    return _facts(comparison) | {
        "study": "compare",
        "task": {"name": comparison.task.name, "kind": comparison.task.kind},
        "metric": results.metric.name,
        "finished": finished,
        "verdict": verdict(results, finished),
        "plan": None if comparison.plan is None else asdict(comparison.plan),
        "rows": [asdict(row) | {"rank": None} for row in results.rows],
        "winner": None if winner is None else winner.key,
        "trainings": {
            result.key: result.value if result.value is not None else {"failed": result.failed}
            for result in sorted(comparison.results.values(), key=lambda r: r.key)
        },
    }
