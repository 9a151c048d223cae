"""Jobs of several requests in one call of a function that runs in a thread.

A call starts when the thread is free. It takes the jobs that have arrived meanwhile, up to a size. If calls have
recently shared jobs, a call that is not full waits a little for more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

Call = Callable[[Any, Sequence[Any]], Sequence[Any]]  # (key, jobs) -> a result or an exception for each job


@dataclass(eq=False)
class _Job:
    key: Hashable
    work: Any
    size: int
    future: asyncio.Future[Any]


class Batches:
    """Collect jobs and run them together.

    Args:
        call: Runs jobs with the same key in a thread; returns a result, or an exception, for each of them.
        size: Most rows in a call; a larger job runs alone.
        wait: Longest time in seconds that a job waits for others.
        name: Name of the thread.
        on_call: Is called with the rows of each call.

    Example:
        >>> import asyncio
        >>> from seqloom.lab.serve.batches import Batches
        >>> async def double_all():
        ...     batches = Batches(lambda key, jobs: [2 * job for job in jobs], size=8, wait=0.001, name="double")
        ...     async with batches:
        ...         return await asyncio.gather(*(batches.run("key", n, 1) for n in range(3)))
        >>> asyncio.run(double_all())
        [0, 2, 4]
    """

    def __init__(
        self,
        call: Call,
        size: int,
        wait: float,
        name: str,
        on_call: Callable[[int], None] | None = None,
    ) -> None:
        self._call, self._size, self._wait, self._on_call = call, size, wait, on_call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._jobs: deque[_Job] = deque()
        self._rows = 0
        self._running: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()
        self._is_shared = False  # whether the last call had several jobs
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def rows(self) -> int:
        """The number of rows that wait."""
        return self._rows

    async def __aenter__(self) -> Batches:
        self._loop_task = asyncio.create_task(self._collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the calls that have started; jobs that wait are cancelled."""
        if self._loop_task is not None:
            self._loop_task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for job in self._jobs:
            job.future.cancel()
        self._thread.shutdown(wait=False)

    async def run(self, key: Hashable, work: Any, size: int) -> Any:  # noqa: ANN401  # whatever `call` takes and returns
        """Run a job together with others and return its result, or raise its exception.

        Args:
            key: Jobs with equal keys may share a call.
            work: What `call` takes.
            size: Rows of the job.
        """
        job = _Job(key, work, size, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._rows += size
        self._change.set()
        return await job.future

    async def _collect(self) -> None:
        while True:
            await self._until(lambda: bool(self._jobs) and self._may_start())
            if self._is_shared and self._rows < self._size and self._wait:
                try:
                    async with asyncio.timeout(self._wait):
                        await self._until(lambda: self._rows >= self._size)
                except TimeoutError:
                    pass
            if jobs := self._take():
                task = asyncio.create_task(self._run(jobs))
                self._running.add(task)
                task.add_done_callback(self._finish)

    def _may_start(self) -> bool:
        """Whether the thread is free; a full call may queue behind the running one, so that the thread never waits."""
        return len(self._running) == 0 or (len(self._running) == 1 and self._rows >= self._size)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._change.clear()
            await self._change.wait()

    def _take(self) -> list[_Job]:
        """Remove and return the first job and those that fit with it."""
        taken: list[_Job] = []
        rows = 0
        left: deque[_Job] = deque()
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.done():  # its client has gone
                self._rows -= job.size
            elif not taken or (job.key == taken[0].key and rows + job.size <= self._size):
                taken.append(job)
                rows += job.size
                self._rows -= job.size
            else:
                left.append(job)
                if rows >= self._size:
                    break
        left.extend(self._jobs)
        self._jobs = left
        if taken:
            self._is_shared = len(taken) > 1
            if self._on_call is not None:
                self._on_call(rows)
        return taken

    async def _run(self, jobs: list[_Job]) -> None:
        loop = asyncio.get_running_loop()
        try:
            results = await loop.run_in_executor(self._thread, self._call, jobs[0].key, [job.work for job in jobs])
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of polars is not an Exception
            results = [error if isinstance(error, Exception) else RuntimeError(type(error).__name__)] * len(jobs)
        for job, result in zip(jobs, results, strict=True):
            if job.future.done():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._change.set()


def run_together(
    call: Callable[[list[Any]], Sequence[Any]], jobs: Sequence[Any], expected: type[Exception]
) -> list[Any]:
    """Run jobs in one call; if it raises `expected`, run each alone, so that one bad job does not fail the others.

    Returns:
        A result or an exception for each job.
    """
    try:
        return list(call(list(jobs)))
    except expected as error:
        if len(jobs) == 1:
            return [error]
    results: list[Any] = []
    for job in jobs:
        results += run_together(call, [job], expected)
    return results
