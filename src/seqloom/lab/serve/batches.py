"""Batch the jobs of several requests into one call of a function that runs in a thread.

A call starts when the thread is free. It takes the rows that have arrived meanwhile, in turns, up to a maximum number
of rows and time steps. If recent calls have combined several jobs, a call that is not full waits briefly for more.
While there are short jobs, a long job gets a small share of the time: after each of its calls it rests until there are
none, or for many times as long as the call took, at most a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from seqloom.lab.serve.turns import RequestPart, RequestRows, Turns

Call = Callable[[Any, Sequence[RequestPart]], Sequence[Any]]  # (key, parts) -> results, or an exception, for each part
REST, MOST_REST = 15, 1.0  # how many times longer the rest is than a call of a long job; its maximum in seconds
CALL_STEPS = 4096  # time steps of a call, for which others wait; 32 rows of 128 steps


class Batches:
    """Collect jobs and run them together.

    Args:
        call: Runs parts of jobs with the same key in a thread; returns a list with the result of each row, or an
            exception, for each part.
        size: Maximum number of rows in a call.
        wait: Longest time in seconds that a job waits for others.
        name: Name of the thread.
        on_call: Called with the rows of each call.
        steps: Maximum number of time steps in a call; a row with more runs alone.

    Example:
        >>> import asyncio
        >>> from seqloom.lab.serve.batches import Batches
        >>> async def double_all():
        ...     call = lambda key, parts: [[2 * row for row in part.rows] for part in parts]
        ...     batches = Batches(call, size=8, wait=0.001, name="double")
        ...     async with batches:
        ...         return await asyncio.gather(*(batches.run("key", [n], [1], "client") for n in range(3)))
        >>> asyncio.run(double_all())
        [[0], [2], [4]]
    """

    def __init__(
        self,
        call: Call,
        size: int,
        wait: float,
        name: str,
        on_call: Callable[[int], None] | None = None,
        steps: int = CALL_STEPS,
    ) -> None:
        self._call, self._size, self._wait, self._on_call = call, size, wait, on_call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._turns = Turns(size, steps)
        self._most_steps = steps
        self._running: dict[asyncio.Task[None], int] = {}  # running calls -> their steps
        self._jobs: set[RequestRows] = set()  # jobs that are not finished
        self._short = 0  # jobs that are not finished and not long
        self._long_calls, self._rest_until = 0, 0.0  # long calls that run; the end of the rest after the last one
        self._change = asyncio.Event()
        self._is_shared = False  # whether the last call had several jobs
        self._loop_task: asyncio.Task[None] | None = None

    @property
    def rows(self) -> int:
        """The number of waiting rows."""
        return self._turns.rows

    async def __aenter__(self) -> Batches:
        self._loop_task = asyncio.create_task(self._collect())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish the calls that have started; cancel the waiting jobs."""
        if self._loop_task is not None:
            self._loop_task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        for job in list(self._jobs):
            job.future.cancel()
        self._thread.shutdown(wait=False)

    async def run(self, key: Hashable, rows: Sequence[Any], steps: Sequence[int], client: str) -> list[Any]:
        """Run a job together with others and return the result of each row, or raise its exception.

        Args:
            key: Jobs with equal keys may share a call.
            rows: At least one.
            steps: The time steps of each row.
            client: The client who sent it; clients take turns.
        """
        job = RequestRows(key, rows, steps, client, asyncio.get_running_loop().create_future())
        self._jobs.add(job)
        self._turns.add(job)
        self._short += not job.is_long
        self._change.set()
        try:
            return await job.future
        finally:  # the client may have left, and the rest of a job that failed need not run
            self._jobs.discard(job)
            self._turns.discard(job)
            self._short -= not job.is_long
            self._change.set()

    async def _collect(self) -> None:
        while True:
            await self._until(self._may_start)
            if self._is_shared and self.rows < self._size and self._wait:
                try:
                    async with asyncio.timeout(self._wait):
                        await self._until(lambda: self.rows >= self._size)
                except TimeoutError:
                    pass
            if parts := self._turns.take(0.5 if self._running else 1.0):
                self._is_shared = len(parts) > 1
                if self._on_call is not None:
                    self._on_call(sum(len(part.rows) for part in parts))
                task = asyncio.create_task(self._run(parts))
                self._running[task] = count_steps(parts)
                task.add_done_callback(self._finish)

    def _may_start(self) -> bool:
        """Return whether a call may start.

        The thread must be free, or run a short call and many rows wait: a second short call is then prepared, so that
        the thread does not wait. Both together are at most as long as one call may be.
        """
        now = asyncio.get_running_loop().time()
        self._turns.rests = self._short > 0 and (self._long_calls > 0 or now < self._rest_until)
        if not self._turns.has_next():
            return False
        if not self._running:
            return True
        is_short = len(self._running) == 1 and 2 * sum(self._running.values()) <= self._most_steps
        return is_short and self.rows >= self._size

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._change.clear()
            await self._change.wait()

    async def _run(self, parts: list[RequestPart]) -> None:
        loop = asyncio.get_running_loop()
        start, is_long = loop.time(), any(part.job.is_long for part in parts)
        self._long_calls += is_long
        try:
            results = await loop.run_in_executor(self._thread, self._call, parts[0].job.key, parts)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a panic of polars is not an Exception
            results = [error if isinstance(error, Exception) else RuntimeError(type(error).__name__)] * len(parts)
        finally:
            self._long_calls -= is_long
            if is_long:
                rest = min(MOST_REST, REST * (loop.time() - start))
                self._rest_until = loop.time() + rest
                loop.call_later(rest, self._change.set)
        for part, result in zip(parts, results, strict=True):
            job = part.job
            if job.future.done():
                continue
            if isinstance(result, BaseException):
                job.future.set_exception(result)
                continue
            job.results.extend(result)
            if len(job.results) == len(job.rows):
                job.future.set_result(job.results)

    def _finish(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._change.set()


def count_steps(parts: Sequence[RequestPart]) -> int:
    """Return the time steps of a call."""
    return sum(sum(part.job.steps[part.first : part.first + len(part.rows)]) for part in parts)


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
