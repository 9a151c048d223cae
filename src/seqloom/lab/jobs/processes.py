"""Jobs in processes of this machine that are kept from job to job, so that torch is imported once in each."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from seqloom.lab.jobs import memory
from seqloom.lab.jobs.call import kept
from seqloom.lab.jobs.environment import core, environment, gpus
from seqloom.lab.jobs.runner import RESTARTS, Job, Result
from seqloom.lab.jobs.worker import end_group


@dataclass(frozen=True)
class Task:
    """A job that was started, how often, and when last."""

    job: Job
    starts: int = 1
    began: float = field(default_factory=time.perf_counter)

    @property
    def alone(self) -> bool:
        """A process that died twice may have died of the others' memory."""
        return self.starts > 2


class InProcesses:
    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        self.events: queue.SimpleQueue[tuple[Worker, bytes]] = queue.SimpleQueue()
        self.workers: dict[int, Worker] = {}  # by number, 0 to count - 1
        self.tasks: dict[int, Task] = {}  # what the worker of that number does
        self.patient: list[Task] = []  # until nothing else runs
        self.peaks: dict[str, int] = {}  # bytes that a function took at most

    def free(self) -> bool:
        exclusive = self.patient or any(task.alone for task in self.tasks.values())
        return len(self.tasks) < self.count and not exclusive

    def fits(self, job: Job) -> bool:
        """There is room, and memory for what jobs of this function took before, and those that run for theirs."""
        if not self.free():
            return False
        promised = sum(self._to_come(task.job.function, self.workers.get(n)) for n, task in self.tasks.items())
        return self._to_come(job.function, self.workers.get(self._number())) <= memory.free() - promised

    def _to_come(self, function: str, worker: Worker | None) -> int:
        return max(0, self.peaks.get(function, 0) - (memory.used(worker.process.pid) if worker else 0))

    def _number(self) -> int:
        """Of a worker with nothing to do; rather one that is there already."""
        idle = [n for n in range(self.count) if n not in self.tasks]
        return min(idle, key=lambda n: n not in self.workers)

    def start(self, job: Job) -> None:
        self._give(Task(job))

    def _give(self, task: Task) -> None:
        number = self._number()
        self.tasks[number] = replace(task, began=time.perf_counter())
        if number not in self.workers:
            self.workers[number] = Worker(number, self.count, self.folder, self.events)
        self.workers[number].send(task.job)

    def wait(self) -> list[Result]:
        while True:
            worker, line = self.events.get()
            if self.workers.get(worker.number) is not worker:
                continue  # one that was ended
            ended = self._ended(worker, line)
            if self.patient and not self.tasks:
                self._give(self.patient.pop())
            if ended is not None:
                return [ended]

    def _ended(self, worker: Worker, line: bytes) -> Result | None:
        """The result, or None where the worker died and the job goes on in another."""
        task = self.tasks.pop(worker.number, None)
        if line:
            assert task is not None
            said = json.loads(line)
            self.peaks[task.job.function] = max(self.peaks.get(task.job.function, 0), said["peak"])
            return Result(**said["result"])
        del self.workers[worker.number]
        cause = worker.end()
        if task is None:
            return None
        if (found := kept(task.job, self.folder)) is not None:
            return found  # it had just finished
        if task.starts > RESTARTS:
            why = f"its process {cause}, {task.starts} times; {self.folder / task.job.key / 'log.txt'} may say more"
            return Result(task.job.key, None, why, time.perf_counter() - task.began)
        again = replace(task, starts=task.starts + 1)
        if again.alone and self.tasks:
            self.patient.append(again)
        else:
            self._give(again)
        return None

    def close(self) -> None:
        for worker in self.workers.values():
            worker.process.terminate()
        for worker in self.workers.values():
            worker.end(patience=2.0)
        self.workers, self.tasks = {}, {}


class Worker:
    """The parent's end of a process of lab/jobs/worker.py."""

    def __init__(self, number: int, of: int, folder: Path, events: queue.SimpleQueue[tuple[Worker, bytes]]) -> None:
        self.number, self.events = number, events
        share, own = gpus(number, of), core(number, of)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "seqloom.lab.jobs.worker", str(folder), "" if own is None else str(own)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(**({} if share is None else {"CUDA_VISIBLE_DEVICES": share})),
            start_new_session=True,  # a group of its own: Ctrl-C is for the parent, and the group ends as one
        )
        self.ears = [threading.Thread(target=f, daemon=True) for f in (self._listen, self._outlive)]
        for ear in self.ears:
            ear.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put((self, line))

    def _outlive(self) -> None:
        """Its pipe may not tell: a process that a job has forked can keep it open."""
        self.process.wait()
        self.events.put((self, b""))

    def send(self, job: Job) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it died; the ears say so
            self.process.stdin.write(json.dumps(asdict(job)).encode() + b"\n")
            self.process.stdin.flush()

    def end(self, patience: float = 0.0) -> str:
        """Make sure that nothing of it is left; how it ended."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        end_group(self.process.pid)
        self.process.kill()
        code = self.process.wait()
        for ear in self.ears:
            ear.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        if code >= 0:
            return f"ended with exit code {code}"
        killed = code == -signal.SIGKILL
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", as when memory runs out" if killed else "")
