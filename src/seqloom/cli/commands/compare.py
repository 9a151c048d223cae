"""`seqloom compare`: train baselines and models on the same data and rank them."""

from __future__ import annotations

import json as text
import shlex
import sys
import time
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from seqloom.cli.commands import INTERRUPTED, Json, print_warnings
from seqloom.cli.commands.training import DATA, SWITCH, ReadingFlags, TaskOptions, Trust, explicit_options
from seqloom.lab import console
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.names import check_exists
from seqloom.lab.data.pipeline.reading import Reading

if TYPE_CHECKING:  # they need torch, which takes long to import
    from seqloom.lab.compare.rows import Results
    from seqloom.lab.compare.search import Comparison
    from seqloom.lab.jobs.job import Result

MOST_SLOWNESS = 4.0  # a slow disk also makes the wall time longer than the CPU time


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
    wide: Annotated[bool, Parameter(help="Print all columns of the table.")] = False,
    json: Json = False,
) -> int:
    """Train baselines and models within a time budget, write the report, and print the leaderboard.

    Returns:
        0 on success, 1 if every model and baseline failed, 130 after Ctrl-C.
    """
    began, used = time.time(), time.process_time()
    if data is not None:
        check_exists(data)
    with console.show_status("loading"):
        from seqloom.lab.compare.folder import discard_comparison, resume_comparison, start_comparison
        from seqloom.lab.compare.leaderboard import build_leaderboard, build_summary, caption, short_caption
        from seqloom.lab.compare.page import shorten_path
        from seqloom.lab.compare.results import collect_results
        from seqloom.lab.jobs import runner

        if settings.ray:
            runner.Cluster(settings.ray).check()
        options = explicit_options(reading) | (task or {})
        if resume:
            comparison = resume_comparison(data, options, settings, out, trust, began)
        else:
            comparison = start_comparison(data, options, settings, out, began)
        elapsed = time.time() - began
        comparison.slowness = min(MOST_SLOWNESS, max(1.0, elapsed / max(0.1, time.process_time() - used)))
    _print_facts(comparison)
    finished = False
    try:
        _run_jobs(comparison, settings)
        finished = True
    except KeyboardInterrupt:
        folder = shlex.quote(str(shorten_path(comparison.folder)))
        console.note(f"interrupted; continue with: seqloom compare --resume --out {folder}")
    except ValueError:
        if comparison.plan is None and not resume:
            discard_comparison(comparison)
        raise
    with console.show_status("writing the report"):
        results = collect_results(comparison)
        if not finished:
            results = replace(results, has_learned=False)  # no row is recommended yet
        document = _write_report(comparison, results, finished)
    if json:
        console.show_json(document)
    elif not results.rows:
        console.show_text(document["verdict"])
    elif wide:
        console.show_table(build_leaderboard(results))
        console.show_text(f"\n{caption(results, comparison.seeds, comparison.valid_rows)}\n\n{document['verdict']}")
    else:
        console.show_table(build_summary(results))
        console.show_text(f"\n{short_caption(results)}\n\n{document['verdict']}")
    _print_next_steps(comparison, results, finished)
    if not finished:
        return INTERRUPTED
    return 0 if results.models or results.baselines else 1


def _print_facts(comparison: Comparison) -> None:
    """Describe the data, and say where the comparison is stored."""
    from seqloom.lab.compare.page import shorten_path
    from seqloom.lab.data.description import describe_task

    lines = [*describe_task(comparison.task, console.text_width()), ""]
    lines.append(f"comparing in {shorten_path(comparison.folder)}")
    if comparison.folds > 1:
        lines.append(f"{comparison.folds} folds, so that every row is tested; the splits above are those of the first")
    for line in lines:
        console.note(line)


def _run_jobs(comparison: Comparison, settings: CompareSettings) -> None:
    """Run all jobs and report each result."""
    from seqloom.lab.compare.quick_answer import score_quick_baselines
    from seqloom.lab.jobs import runner

    # --workers without --ray moves a resumed comparison from Ray to this machine.
    ray = settings.ray or (comparison.settings.ray if settings.workers is None else None)
    workers = settings.workers or comparison.workers
    at_once = settings.workers or comparison.settings.workers
    where: Any = runner.Cluster(ray, at_once=at_once) if ray else runner.Processes(workers)
    with redirect_stdout(sys.stderr), ExitStack() as bar:  # Ray reports failed machines on stdout
        move, tell = bar.enter_context(console.show_progress(comparison.expected))
        expected = comparison.expected
        folder, left = comparison.folder / "jobs", comparison.seconds_for_jobs
        for result in runner.run(comparison.jobs(), where, folder, seconds_left=left):
            comparison.results[result.key] = result
            if comparison.expected != expected:  # planning changed the number of jobs
                expected = comparison.expected
                bar.close()
                move, tell = bar.enter_context(console.show_progress(expected - len(comparison.results) + 1))
            line = describe_result(comparison, result)
            move(f"{comparison.format_time_left()}  {line}")
            tell(line)
        for result in score_quick_baselines(comparison):
            comparison.results[result.key] = result
            tell(describe_result(comparison, result))


def _write_report(comparison: Comparison, results: Results, finished: bool) -> dict[str, Any]:
    """Write the report and keep the best run; return the stored document."""
    from seqloom.lab import report
    from seqloom.lab.compare.folder import store_models
    from seqloom.lab.compare.page import build_document, build_page

    document = build_document(comparison, results, finished)
    report.write_report(build_page(comparison, results, finished), comparison.folder, document)
    if finished:
        store_models(comparison, results)
    stored: dict[str, Any] = text.loads((comparison.folder / "study.json").read_text(encoding="utf-8"))
    return stored


def _print_next_steps(comparison: Comparison, results: Results, finished: bool) -> None:
    from seqloom.lab.compare.page import list_next, shorten_path

    console.note(f"\nreport: {shorten_path(comparison.folder / 'report.html')}")
    for key in (key for key, result in comparison.results.items() if result.failed):
        if (log := comparison.folder / "jobs" / key / "failed.txt").exists():
            title = comparison.job_factory.titles.get(key, key)
            console.note(f"traceback of {title}: {shorten_path(log)}")
    if finished:
        for purpose, command in list_next(comparison, results):
            console.note(f"{purpose}:\n  {command}")


def describe_result(comparison: Comparison, result: Result) -> str:
    """Return one line about a finished job: what it was, and its score, its time or its error."""
    from seqloom.core.plurals import count
    from seqloom.lab.kinds.registry import kind_of
    from seqloom.lab.stats.metrics import METRICS

    title, value = comparison.job_factory.titles.get(result.key, result.key), result.value
    if value is None:
        return f"{title}: failed: {result.failed}"
    if "one" in value:
        return f"{title}: {1000 * value['one']:.3g} ms for a prediction"
    if "memory" in value:
        return f"{title}: {1000 * value['step']:.3g} ms for a training step"
    metric = comparison.metric
    if metric.name not in value["valid"]:  # texts are decoded at the end only
        metric = METRICS[kind_of(comparison.task).choose_selecting(value["valid"])]
    cut = f" (time was up after {count(value['step'], 'step')})" if value.get("is_cut") else ""
    return f"{title}: validation {metric.title} {metric.format(value['valid'].get(metric.name))}{cut}"
