"""Run jobs: the same ones in this process, in processes of this machine, or on a Ray cluster.

    for result in run(jobs, Processes(2), "runs/study"):
        print(result.key, result.value or result.failed)

A job is a function by name and its settings. It gets a folder of its own, runs/study/<key>, to keep
checkpoints in, and may be started again there after its process died. What it returns is kept in
result.json of that folder, whole or not at all; a job whose result is there is not run again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from seqloom.core.errors import UserError

RESTARTS = 3  # of a job whose process or machine died


@dataclass(frozen=True)
class Job:
    """`function` is "module:name"; it is called with **settings and folder=Path, and returns a JSON-able dict.

    With `gpus` of 2 or more it is called in as many processes, under torchrun; the first one's answer counts.
    """

    key: str
    function: str
    settings: dict[str, Any] = field(default_factory=dict)
    gpus: float = 0


@dataclass(frozen=True)
class Result:
    """What a job returned, or why there is nothing; the seconds of its last start."""

    key: str
    value: dict[str, Any] | None
    failed: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class Here:
    """In this process, one after the other."""

    def open(self, folder: Path) -> Place:
        from seqloom.lab.jobs.here import InThisProcess

        return InThisProcess(folder)


@dataclass(frozen=True)
class Processes:
    """In so many processes of this machine, each with one thread, on a core and a share of the GPUs of its own."""

    workers: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise UserError(f"workers must be 1 or more, got {self.workers}")

    def open(self, folder: Path) -> Place:
        from seqloom.lab.jobs.processes import InProcesses

        return InProcesses(folder, self.workers)


@dataclass(frozen=True)
class Cluster:
    """On the Ray cluster at "auto", host:port or ray://host:port.

    The folder must be one that all machines see, such as a network drive. Where there is none, `storage`
    is a place that they all reach, any that fsspec knows (s3://bucket/path): jobs' folders are copied
    there every `copy_every` seconds, and from there to where a job is started again, and in the end to
    the folder. `at_once` is how many jobs Ray is given at a time: as many as fit, unless a cluster is to
    grow for more.
    """

    address: str = "auto"
    storage: str | None = None
    copy_every: float = 30.0
    at_once: int | None = None

    def check(self) -> None:
        """Raise where nobody answers at the address, within seconds."""
        from seqloom.lab.jobs.address import check

        check(self.address)

    def open(self, folder: Path) -> Place:
        from seqloom.lab.jobs.cluster import OnRay

        return OnRay(folder, self)


class Place(Protocol):
    """Where jobs run, opened: what each place writes."""

    def free(self) -> bool:
        """Whether a job could be started now."""

    def fits(self, job: Job) -> bool:
        """Whether this one could; always so when nothing runs."""

    def start(self, job: Job) -> None: ...

    def wait(self) -> list[Result]:
        """Those of jobs that have ended since; blocks until there is one."""

    def close(self) -> None:
        """Stop everything that still runs."""


def run(
    jobs: Iterable[Job | None],
    where: Here | Processes | Cluster,
    folder: Path | str,
    before: Callable[[str], None] | None = None,
) -> Iterator[Result]:
    """Each job's result as soon as it is known; a job that fails is a result with the reason.

    `before` is called with a job's key when it starts. The next of `jobs` is asked for when there is room
    for it and all results so far have been handed over, so an iterator may make it from those results; it
    gives None where it has nothing to offer before the next result. To stop early, close this iterator.
    """
    folder = Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return _results(iter(jobs), where.open(folder), folder, before)


def _results(
    jobs: Iterator[Job | None], place: Place, folder: Path, before: Callable[[str], None] | None
) -> Iterator[Result]:
    from seqloom.lab.jobs.call import kept

    keys: set[str] = set()
    running, more = 0, True
    job: Job | None = None  # asked for, and waiting for room
    with closing(place):
        while True:
            if job is None and more and (place.free() or not running):
                try:
                    job = next(jobs)
                except StopIteration:
                    more = False
                if job is not None:
                    _check(job, keys)
                    old = kept(job, folder)
                    if old is not None:
                        job = None
                        yield old
                        continue
            if job is not None and (place.fits(job) or not running):
                if before is not None:
                    before(job.key)
                place.start(job)
                job, running = None, running + 1
            elif running:
                for result in place.wait():
                    running -= 1
                    yield result
            elif more:
                raise UserError("the iterator of jobs gave None to wait for a result, but no job is running")
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
