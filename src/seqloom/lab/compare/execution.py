"""Run a comparison to its end: for the command line and for Python."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from seqloom.core.plurals import count
from seqloom.lab import console, report
from seqloom.lab.compare.baselines.registry import QUICK
from seqloom.lab.compare.folder import discard_comparison, resume_comparison, start_comparison, store_models
from seqloom.lab.compare.page import build_document, build_page, shorten_path
from seqloom.lab.compare.results import collect_results
from seqloom.lab.compare.rows import Results
from seqloom.lab.compare.search import Search
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.description import describe_task
from seqloom.lab.jobs import runner
from seqloom.lab.jobs.job import Job, Result
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.stats.metrics import METRICS

MOST_SLOWNESS = 4.0  # a slow disk also makes the wall time longer than the CPU time


def open_comparison(
    data: str | None,
    options: Mapping[str, Any],
    settings: CompareSettings,
    out: Path | None,
    *,
    resume: bool = False,
    trust: bool = False,
    began: tuple[float, float] | None = None,
) -> Search:
    """Start a comparison, or continue one.

    Args:
        data: The data; None for the built-in digits.
        out: The folder; by default one in comparisons/.
        resume: Whether to continue the comparison in the folder.
        trust: With `resume`, whether Python code stored in the folder may be executed.
        began: `time.time()` and `time.process_time()` when the budget began. Default: now.
    """
    start, used = began or (time.time(), time.process_time())
    if settings.ray:
        runner.Cluster(settings.ray).check()
    if resume:
        comparison = resume_comparison(data, options, settings, out, trust, start)
    else:
        comparison = start_comparison(data, options, settings, out, start)
    elapsed = time.time() - start
    comparison.slowness = min(MOST_SLOWNESS, max(1.0, elapsed / max(0.1, time.process_time() - used)))
    return comparison


def describe_comparison(comparison: Search) -> list[str]:
    """Describe the data, and say where the comparison is stored, in lines."""
    lines = [*describe_task(comparison.task, console.text_width()), ""]
    lines.append(f"comparing in {shorten_path(comparison.folder)}")
    if comparison.folds > 1:
        lines.append(f"{comparison.folds} folds, so that every row is tested; the splits above are those of the first")
    return lines


def run_comparison(comparison: Search, settings: CompareSettings, *, resume: bool = False) -> bool:
    """Run all jobs; return False if they were interrupted (Ctrl-C).

    A comparison that fails before its plan is removed, unless it was resumed.

    Raises:
        UserError: If the data or the settings do not allow a comparison.
    """
    try:
        _run_jobs(comparison, settings)
    except KeyboardInterrupt:
        return False
    except ValueError:
        if comparison.plan is None and not resume:
            discard_comparison(comparison)
        raise
    return True


def _run_jobs(comparison: Search, settings: CompareSettings) -> None:
    """Run all jobs and report each result."""
    # --workers without --ray moves a resumed comparison from Ray to this machine.
    ray = settings.ray or (comparison.settings.ray if settings.workers is None else None)
    workers = settings.workers or comparison.workers
    at_once = settings.workers or comparison.settings.workers
    where: Any = runner.Cluster(ray, at_once=at_once) if ray else runner.Processes(workers)
    with redirect_stdout(sys.stderr), ExitStack() as bar:  # Ray reports failed machines on stdout
        advance, tell = bar.enter_context(console.show_progress(comparison.expected))
        expected = comparison.expected
        folder, left = comparison.folder / "jobs", comparison.seconds_for_jobs
        for result in runner.run(comparison.jobs(), where, folder, seconds_left=left):
            comparison.results[result.key] = result
            if comparison.expected != expected:  # planning changed the number of jobs
                expected = comparison.expected
                bar.close()
                advance, tell = bar.enter_context(console.show_progress(expected - len(comparison.results) + 1))
            line = describe_result(comparison, result)
            advance(f"{comparison.format_time_left()}  {line}")
            tell(line)
        for result in score_quick_baselines(comparison):
            comparison.results[result.key] = result
            tell(describe_result(comparison, result))


def score_quick_baselines(comparison: Search) -> Iterator[Result]:
    """Fit the baselines that take milliseconds in this process, unless a baseline has been scored.

    On a busy machine the workers may need a short budget to start, and no job ends. This process has imported all that
    a baseline needs. The first one is fitted even if time is up, the others only until then.

    Args:
        comparison: The comparison, whose jobs have ended. The caller puts each result into its `results`.

    Returns:
        The results, one by one.
    """

    def is_scored() -> bool:
        results = [comparison.results.get(job.key) for job in comparison.baseline_jobs]
        return any(result is not None and result.value is not None for result in results)

    def list_jobs() -> Iterator[Job]:
        for job in [] if is_scored() else comparison.baseline_jobs:
            if is_scored() and comparison.seconds_left <= 0:
                return
            if job.settings["name"] in QUICK and job.key not in comparison.results:
                yield job

    return runner.run(list_jobs(), runner.Here(), comparison.folder / "jobs")


def write_report(comparison: Search, finished: bool) -> tuple[Results, dict[str, Any]]:
    """Write the report and keep the best runs; return the results and the stored document."""
    results = collect_results(comparison)
    if not finished:
        results = replace(results, has_learned=False)  # no row is recommended yet
    document = build_document(comparison, results, finished)
    report.write_report(build_page(comparison, results, finished), comparison.folder, document)
    if finished:
        store_models(comparison, results)
    return results, read_document(comparison.folder)


def read_document(folder: Path) -> dict[str, Any]:
    """Return the stored results of a comparison."""
    stored: dict[str, Any] = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    return stored


def describe_result(comparison: Search, result: Result) -> str:
    """Describe a finished job in one line, with its score, its time or its error."""
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
