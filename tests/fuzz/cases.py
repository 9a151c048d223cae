"""Run some cases of one kind, in this process or, if a case may crash it, in forks of it."""

from __future__ import annotations

import collections
import contextlib
import importlib
import itertools
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

BATCH = 100  # cases of one fork: memory that earlier cases left behind counts against MEMORY
LONGEST = 120.0  # seconds of a case in a fork
MEMORY = 4 << 30  # bytes that a fork may claim beside those of its parent
PANICS = ("panicked at", "Traceback (most recent call last)")  # what no case may print
MOST_LETTERS = 300  # of a failure in the record


class Part(NamedTuple):
    """The cases of one process."""

    kind: str
    seed: int
    numbers: range
    seconds: float  # no case starts later
    device: str


class Result(NamedTuple):
    """What became of them."""

    counts: collections.Counter[str]
    failures: list[str]  # the seed's case, and the first line of what went wrong
    slowest: float


class Case(NamedTuple):
    """What became of one of them: its outcome, or else the traceback, the signal or the limit that ended it."""

    number: int
    outcome: str
    error: str
    seconds: float


def run(part: Part) -> Result:
    """Run cases of one kind; those that went wrong are printed."""
    began = time.perf_counter()
    torch.set_num_threads(1)
    module = importlib.import_module(f"fuzz.{part.kind}")
    settings = {"device": part.device} if part.kind == "cells" else {}
    counts, slowest, failures = collections.Counter[str](), 0.0, list[str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"SEQLOOM_CACHE": f"{folder}/cache", "SEQLOOM_STATE": f"{folder}/state"}

        def check(number: int) -> str:
            draw = random.Random(f"{part.kind} {part.seed} {number}")
            return str(module.check(draw, Path(folder), **settings))

        numbers = (n for n in part.numbers if time.perf_counter() - began <= part.seconds)
        if hasattr(module, "prepare"):
            _prepare_in_fork(lambda: module.prepare(Path(folder)))
        for case in run_in_forks(check, numbers) if hasattr(module, "prepare") else run_here(check, numbers):
            if case.error:
                last = case.error.strip().splitlines()[-1]
                failures.append(f"case {case.number}: {last[:MOST_LETTERS]}")
                print(f"{part.kind}: seed {part.seed}, case {case.number}\n{case.error}", file=sys.stderr, flush=True)
            else:
                counts[case.outcome] += 1
            slowest = max(slowest, case.seconds)
    return Result(counts, failures, slowest)


def run_here(check: Callable[[int], str], numbers: Iterator[int]) -> Iterator[Case]:
    """Run cases in this process."""
    for number in numbers:
        start, outcome, error = time.perf_counter(), "", ""
        try:
            outcome = check(number)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:
            error = "".join(traceback.format_exception(raised))
        yield Case(number, outcome, error, time.perf_counter() - start)


def run_in_forks(check: Callable[[int], str], numbers: Iterator[int]) -> Iterator[Case]:
    """Run cases in forks, some in each: one that crashes or takes too long ends its fork, and counts as wrong.

    The caller must not have used polars or torch: their threads do not exist in a fork. Importing them is allowed.
    """
    again: list[int] = []  # cases of a fork that crashed before it came to them
    while todo := again or list(itertools.islice(numbers, BATCH)):
        again = list(todo)
        for case in _Fork(check, todo).results():
            again.remove(case.number)
            yield case


class _Fork:
    """A child process that runs some cases and reports each of them."""

    def __init__(self, check: Callable[[int], str], numbers: list[int]) -> None:
        self.numbers = numbers
        self.pipe, end = os.pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `results`
        self.pid = os.fork()
        if self.pid:
            os.close(end)
            return
        status = 1
        try:
            os.setsid()  # it and all that it starts can be killed together
            os.close(self.pipe)
            os.dup2(self.errors.fileno(), 2)
            limit_memory()
            with os.fdopen(end, "w") as report:
                for case in run_here(check, iter(numbers)):
                    print(json.dumps(self._judge(case)), file=report, flush=True)
            status = 0
        finally:
            os._exit(status)

    def _judge(self, case: Case) -> Case:
        """Return the case; it is wrong, too, if it printed a panic or a traceback."""
        sys.stderr.flush()
        printed = self._take_errors()
        if not case.error and any(sign in printed for sign in PANICS):
            return case._replace(error=f"{case.outcome}, and printed {printed.strip()}")
        return case

    def _take_errors(self) -> str:
        """Return what was printed since the last case, and forget it."""
        size = os.fstat(self.errors.fileno()).st_size
        printed = os.pread(self.errors.fileno(), size, 0).decode(errors="replace") if size else ""
        os.ftruncate(self.errors.fileno(), 0)
        os.lseek(self.errors.fileno(), 0, os.SEEK_SET)
        return printed

    def results(self) -> Iterator[Case]:
        """Yield the cases that have run; the last one is that in which the child died, if it did."""
        left, began = list(self.numbers), time.perf_counter()
        with os.fdopen(self.pipe, "rb", buffering=0) as report:  # nothing that `select` does not see
            while left:
                ready, _, _ = select.select([report], [], [], LONGEST)
                line = report.readline() if ready else b""
                if not line:
                    break
                case = Case(*json.loads(line))
                left.remove(case.number)
                began = time.perf_counter()
                yield case
        if left:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        printed = self._take_errors()
        self.errors.close()
        if left:
            seconds = time.perf_counter() - began
            reason = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {status >> 8}"
            yield Case(left[0], "", f"{printed}\nthe process ended with {reason} after {seconds:.1f} s", seconds)


def limit_memory() -> None:
    """Let a large allocation fail in this process, instead of taking the memory of the machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _prepare_in_fork(prepare: Callable[[], Any]) -> None:
    """Call a function in a child process, and import here what it has imported, so that later forks need not.

    Torch's gradients cannot be used on both sides of a fork.
    """
    pipe, end = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            prepare()
            with os.fdopen(end, "w") as report:
                print(*sys.modules, sep="\n", file=report)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(end)
    with os.fdopen(pipe) as report:
        names = report.read().split()
    if os.waitpid(pid, 0)[1]:
        raise RuntimeError("the cases could not be prepared")
    for name in sorted(set(names) - set(sys.modules)):
        with contextlib.suppress(Exception):  # such as modules that were made at run time
            importlib.import_module(name)
