"""`seqloom compare`: train baselines and models on the same data and rank them."""

from __future__ import annotations

import json as text
import shlex
import sys
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json, print_warnings
from seqloom.cli.commands.training import DATA, SWITCH, ReadingFlags, TaskOptions, Trust, explicit_options
from seqloom.lab import console
from seqloom.lab.compare.metric import choose_metric
from seqloom.lab.compare.search import Comparison
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.jobs.runner import Result

if TYPE_CHECKING:  # takes long to import
    from seqloom.lab.compare.results import Results


@print_warnings
def compare(
    data: Annotated[str | None, DATA] = None,
    *,
    settings: Annotated[CompareSettings, Parameter(name="*", group="Comparison", **SWITCH)] = CompareSettings(),
    out: Annotated[Path | None, Parameter(help="Folder for runs and report. Default: comparisons/NAME.")] = None,
    resume: Annotated[bool, Parameter(help="Continue a comparison that was interrupted.")] = False,
    trust: Trust = False,
    reading: ReadingFlags = Reading(),
    task: TaskOptions = None,
    json: Json = False,
) -> int:
    """Train baselines and models within a time budget, write the report, and print the leaderboard.

    Returns:
        0 on success, 1 if every model failed, 130 after Ctrl-C.
    """
    with console.show_status("loading"):
        from seqloom.lab.compare.folder import discard_comparison, resume_comparison, start_comparison
        from seqloom.lab.compare.leaderboard import build_leaderboard, caption
        from seqloom.lab.compare.results import collect_results
        from seqloom.lab.data.description import describe_task
        from seqloom.lab.jobs import runner

        if settings.ray:
            runner.Cluster(settings.ray).check()
        options = explicit_options(reading) | (task or {})
        if resume:
            comparison = resume_comparison(data, options, settings, out, trust)
        else:
            comparison = start_comparison(data, options, settings, out)
    facts = describe_task(comparison.task, console.text_width())
    for line in [*facts, "", f"comparing in {_short_path(comparison.folder)}"]:
        console.note(line)
    finished = False
    try:
        _run_jobs(comparison, settings)
        finished = True
    except KeyboardInterrupt:
        folder = shlex.quote(_short_path(comparison.folder))
        console.note(f"interrupted; continue with: seqloom compare --resume --out {folder}")
    except ValueError:
        if comparison.plan is None and not resume:
            discard_comparison(comparison)
        raise
    with console.show_status("writing the report"):
        results = collect_results(comparison)
        document = _write_report(comparison, results, finished)
    if json:
        console.show_json(document)
    else:
        console.show_table(build_leaderboard(results))
        console.show_text(f"\n{caption(results, comparison.seeds, comparison.valid_rows)}\n\n{document['verdict']}")
    _print_next_steps(comparison, results, finished)
    if not finished:
        return INTERRUPTED
    return 0 if results.models else 1


def _run_jobs(comparison: Comparison, settings: CompareSettings) -> None:
    """Run all jobs and report each result."""
    from seqloom.lab.jobs import runner

    # --workers without --ray moves a resumed comparison from Ray to this machine.
    ray = settings.ray or (comparison.settings.ray if settings.workers is None else None)
    workers = settings.workers or comparison.workers
    at_once = settings.workers or comparison.settings.workers
    where: Any = runner.Cluster(ray, at_once=at_once) if ray else runner.Processes(workers)
    with redirect_stdout(sys.stderr), ExitStack() as bar:  # Ray reports failed machines on stdout
        move, tell = bar.enter_context(console.show_progress(comparison.expected))
        expected = comparison.expected
        for result in runner.run(comparison.jobs(), where, comparison.folder / "jobs"):
            comparison.results[result.key] = result
            if comparison.expected != expected:  # planning changed the number of jobs
                expected = comparison.expected
                bar.close()
                move, tell = bar.enter_context(console.show_progress(expected - len(comparison.results) + 1))
            line = describe_result(comparison, result)
            move(f"{comparison.format_time_left()}  {line}")
            tell(line)


def _write_report(comparison: Comparison, results: Results, finished: bool) -> dict[str, Any]:
    """Write the report and keep the best run; return the stored document."""
    from seqloom.lab import report
    from seqloom.lab.compare.folder import store_winner
    from seqloom.lab.compare.page import build_document, build_page

    document = build_document(comparison, results, finished)
    report.write_report(build_page(comparison, results, finished), comparison.folder, document)
    if finished:
        store_winner(comparison, results)
    stored: dict[str, Any] = text.loads((comparison.folder / "study.json").read_text(encoding="utf-8"))
    return stored


def _print_next_steps(comparison: Comparison, results: Results, finished: bool) -> None:
    console.note(f"\nreport: {_short_path(comparison.folder / 'report.html')}")
    for key in (key for key, result in comparison.results.items() if result.failed):
        if (log := comparison.folder / "jobs" / key / "failed.txt").exists():
            console.note(f"traceback of {key}: {_short_path(log)}")
    if finished and results.models:
        command = {"generate": "generate", "translate": "translate"}.get(comparison.task.kind, "predict")
        words = ["seqloom", command, _short_path(comparison.folder / "best")]
        words += [] if command == "generate" else ["FILE"]
        console.note(f"use the best model: {shlex.join(words)}")


def _short_path(path: Path) -> str:
    """Return the path relative to the working directory if it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def describe_result(comparison: Comparison, result: Result) -> str:
    """Return one line about a finished job: its score, its time or its error."""
    name, value = result.key, result.value
    if value is None:
        return f"{name}: failed: {result.failed}"
    if "one" in value:
        return f"{name}: {1000 * value['one']:.3g} ms"
    if "memory" in value:
        return f"{name}: {1000 * value['step']:.3g} ms a step"
    metric = choose_metric(comparison.task.kind, value["valid"])
    return f"{name}: validation {metric.title} {metric.format(value['valid'].get(metric.name))}"
