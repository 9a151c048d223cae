"""Jobs in processes of this machine. A process runs many jobs, so that it imports torch only once."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from seqloom.lab.jobs import memory
from seqloom.lab.jobs.call import child_environment, read_result
from seqloom.lab.jobs.job import RESTARTS, Job, Result
from seqloom.lab.jobs.worker import end_group


@dataclass(frozen=True)
class Attempt:
    """A started job, how often it was started, and when it was last started."""

    job: Job
    starts: int = 1
    began: float = field(default_factory=time.perf_counter)

    @property
    def is_exclusive(self) -> bool:
        """Whether it must run alone, because two processes died, perhaps from lack of memory."""
        return self.starts > 2


class InProcesses:
    """Runs jobs in several processes of this machine."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.events: queue.SimpleQueue[tuple[Worker, bytes]] = queue.SimpleQueue()
        self.workers: dict[int, Worker] = {}  # by number, 0 to count - 1
        self.attempts: dict[int, Attempt] = {}  # the attempt of the worker with that number
        self.waiting: list[Attempt] = []  # exclusive attempts, until nothing else runs
        self.peaks: dict[str, int] = {}  # function -> maximum bytes of its jobs

    def free(self) -> bool:
        exclusive = self.waiting or any(attempt.is_exclusive for attempt in self.attempts.values())
        return len(self.attempts) < self.count and not exclusive

    def fits(self, job: Job) -> bool:
        """Return whether a worker is free and memory suffices, judging by past jobs of each function."""
        if not self.free():
            return False
        reserved = sum(
            self._missing_bytes(attempt.job.function, self.workers.get(n)) for n, attempt in self.attempts.items()
        )
        return (
            self._missing_bytes(job.function, self.workers.get(self._choose_worker())) <= memory.free_bytes() - reserved
        )

    def _missing_bytes(self, function: str, worker: Worker | None) -> int:
        return max(0, self.peaks.get(function, 0) - (memory.used_bytes(worker.process.pid) if worker else 0))

    def _choose_worker(self) -> int:
        """Return the number of an idle worker, preferably one that is already running."""
        idle = [n for n in range(self.count) if n not in self.attempts]
        return min(idle, key=lambda n: n not in self.workers)

    def start(self, job: Job) -> None:
        self._start(Attempt(job))

    def _start(self, attempt: Attempt) -> None:
        number = self._choose_worker()
        self.attempts[number] = replace(attempt, began=time.perf_counter())
        if number not in self.workers:
            self.workers[number] = Worker(number, self.count, self.folder, self.events)
        self.workers[number].send(attempt.job)

    def wait(self, seconds: float | None = None) -> list[Result]:
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            try:
                worker, line = self.events.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                return []
            if self.workers.get(worker.number) is not worker:
                continue  # from a terminated worker
            ended = self._read_end(worker, line)
            if self.waiting and not self.attempts:
                self._start(self.waiting.pop())
            if ended is not None:
                return [ended]

    def _read_end(self, worker: Worker, line: bytes) -> Result | None:
        """Return the result, or None if the worker died and the job was restarted in another."""
        attempt = self.attempts.pop(worker.number, None)
        if line:
            assert attempt is not None
            message = json.loads(line)
            self.peaks[attempt.job.function] = max(self.peaks.get(attempt.job.function, 0), message["peak"])
            return Result(**message["result"])
        del self.workers[worker.number]
        cause = worker.end()
        if attempt is None:
            return None
        if (result := read_result(attempt.job, self.folder)) is not None:
            return result  # it had just finished
        if attempt.starts > RESTARTS:
            why = (
                f"its process {cause}, {attempt.starts} times; {self.folder / attempt.job.key / 'log.txt'} may say more"
            )
            return Result(attempt.job.key, None, why, time.perf_counter() - attempt.began)
        again = replace(attempt, starts=attempt.starts + 1)
        if again.is_exclusive and self.attempts:
            self.waiting.append(again)
        else:
            self._start(again)
        return None

    def close(self) -> None:
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.end(patience=2.0)
        self.workers, self.attempts = {}, {}


class Worker:
    """The parent's side of a process that runs lab/jobs/worker.py."""

    def __init__(self, number: int, of: int, folder: Path, events: queue.SimpleQueue[tuple[Worker, bytes]]) -> None:
        self.number, self.events = number, events
        share, own = choose_gpus(number, of), choose_core(number, of)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seqloom.lab.jobs.worker", str(folder), "" if own is None else str(own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(**({} if share is None else {"CUDA_VISIBLE_DEVICES": share})),
            start_new_session=True,  # its own group: Ctrl-C reaches only the parent, and the group ends as one
        )
        self.listeners = [threading.Thread(target=f, daemon=True) for f in (self._listen, self._await_end)]
        for listener in self.listeners:
            listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put((self, line))

    def _await_end(self) -> None:
        """Report the end of the process; its pipe may stay open in a process that a job forked."""
        self.process.wait()
        self.events.put((self, b""))

    def send(self, job: Job) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it died; the listeners report it
            self.process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            self.process.stdin.flush()

    def end(self, patience: float = 0.0) -> str:
        """Terminate the process and all its children; return how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        end_group(self.process.pid)
        self.process.kill()
        code = self.process.wait()
        for listener in self.listeners:
            listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        if code >= 0:
            return f"ended with exit code {code}"
        killed = code == -signal.SIGKILL
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", probably because memory ran out" if killed else "")


def choose_core(number: int, workers: int) -> int | None:
    """Return the core of a worker; None if cores cannot be chosen or are too few.

    The first core depends on this process's id, so that two runners on a large machine rarely share cores.
    """
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    return cores[(os.getpid() + number) % len(cores)] if workers <= len(cores) else None


def choose_gpus(number: int, workers: int) -> str | None:
    """Return CUDA_VISIBLE_DEVICES of a worker; None if there is no GPU."""
    count = torch.cuda.device_count()
    if count == 0:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",")[:count] if visible else [str(n) for n in range(count)]
    if workers > count:
        return names[number % count]
    return ",".join(names[number * count // workers : (number + 1) * count // workers])
