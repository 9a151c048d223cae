"""An answer when time was too short for the workers: the simplest baselines, scored in this process."""

from __future__ import annotations

from collections.abc import Iterator

from seqloom.lab.compare.baselines.registry import QUICK
from seqloom.lab.compare.search import Search
from seqloom.lab.jobs import runner
from seqloom.lab.jobs.job import Job, Result


def score_quick_baselines(comparison: Search) -> Iterator[Result]:
    """Fit the baselines that take milliseconds, unless a baseline has been scored.

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
