"""Run jobs in this process, in processes of this machine, or on a Ray cluster, with the same results.

    for result in run(jobs, Processes(2), "runs/study"):
        print(result.key, result.value or result.failed)

A job is a function by name and its settings. It gets a folder, runs/study/<key>, for its checkpoints, and may be
restarted there after its process died. Its return value is written atomically to result.json in that folder; a job
with a stored result is not run again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from seqloom.core.errors import UserError
from seqloom.lab.jobs.call import InThisProcess, read_result
from seqloom.lab.jobs.cluster import Cluster
from seqloom.lab.jobs.job import Job, Result
from seqloom.lab.jobs.processes import InProcesses

__all__ = ["Cluster", "Here", "Job", "Processes", "Result", "run"]


@dataclass(frozen=True)
class Here:
    """Run jobs in this process, one after the other."""

    def open(self, folder: Path) -> Backend:
        return InThisProcess(folder)


@dataclass(frozen=True)
class Processes:
    """Run jobs in processes of this machine, each with one thread, its own core and its share of the GPUs."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"workers must be 1 or more, got {self.workers}")

    def open(self, folder: Path) -> Backend:
        return InProcesses(folder, self.workers)


class Backend(Protocol):
    """Starts jobs in one place and waits for them."""

    def free(self) -> bool:
        """Return whether any job could be started now."""

    def fits(self, job: Job) -> bool:
        """Return whether this job could be started now."""

    def start(self, job: Job) -> None:
        """Start a job without waiting for it."""

    def wait(self, seconds: float | None = None) -> list[Result]:
        """Block until a job has ended, or for at most `seconds`; return the results."""

    def close(self) -> None:
        """Stop all running jobs."""


def run(
    jobs: Iterable[Job | None],
    where: Here | Processes | Cluster,
    folder: Path | str,
    before: Callable[[str], None] | None = None,
    seconds_left: Callable[[], float] | None = None,
) -> Iterator[Result]:
    """Yield each job's result as soon as it is known; close the iterator to stop early.

    Args:
        jobs: The jobs. The next one is requested when there is room for it and all results so far have been yielded,
            so an iterator may depend on those results. None means that no job is available before the next result.
        where: Where the jobs run.
        folder: The folder of the jobs' folders.
        before: Called with a job's key when it starts.
        seconds_left: Returns the time that is left; at 0 the iterator ends, and the running jobs are stopped. A job
            in this process is not stopped. Default: no limit.

    Returns:
        An iterator over the results. A job that failed has a result with the reason.

    Raises:
        UserError: If a job is invalid, or all jobs wait for a result that never comes.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return _run(iter(jobs), where.open(folder), folder, before, seconds_left or (lambda: math.inf))


def _run(
    jobs: Iterator[Job | None],
    backend: Backend,
    folder: Path,
    before: Callable[[str], None] | None,
    seconds_left: Callable[[], float],
) -> Iterator[Result]:
    keys: set[str] = set()
    running, more = 0, True
    job: Job | None = None  # waiting for room
    with closing(backend):
        while (left := seconds_left()) > 0:
            if job is None and more and (backend.free() or not running):
                try:
                    job = next(jobs)
                except StopIteration:
                    more = False
                if job is not None:
                    _check(job, keys)
                    stored = read_result(job, folder)
                    if stored is not None:
                        job = None
                        yield stored
                        continue
            if job is not None and (backend.fits(job) or not running):
                if before is not None:
                    before(job.key)
                backend.start(job)
                job, running = None, running + 1
            elif running:
                for result in backend.wait(None if left == math.inf else left):
                    running -= 1
                    yield result
            elif more:
                raise UserError("the iterator of jobs returned None to wait for a result, but no job is running")
            else:
                return


def _check(job: Job, keys: set[str]) -> None:
    if not re.fullmatch(r'[^./\\:*?"<>|\x00-\x1f][^/\\:*?"<>|\x00-\x1f]{0,199}', job.key):
        raise UserError(f"a job's key names its folder, and {job.key!r} cannot be one: use letters, digits, - _ = .")
    if job.key in keys:
        raise UserError(f"two jobs have the key {job.key!r}; give each its own")
    if not re.fullmatch(r"[\w.]+:\w+", job.function):
        raise UserError(f'job {job.key!r} has the function {job.function!r}; write "package.module:name"')
    try:
        json.dumps(job.settings)
    except (TypeError, ValueError) as error:
        raise UserError(f"job {job.key!r} has settings that JSON cannot hold: {error}") from None
    keys.add(job.key)
