"""Jobs in this process, one after the other."""

from __future__ import annotations

from pathlib import Path

from seqloom.lab.jobs.call import call
from seqloom.lab.jobs.runner import Job, Result


class InThisProcess:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.job: Job | None = None

    def free(self) -> bool:
        return self.job is None

    def fits(self, job: Job) -> bool:
        return self.job is None

    def start(self, job: Job) -> None:
        self.job = job

    def wait(self) -> list[Result]:
        assert self.job is not None
        job, self.job = self.job, None
        return [call(job, self.folder)]

    def close(self) -> None:
        pass
