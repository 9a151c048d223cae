"""Fair scheduling of rows: clients take turns, and so do the requests of a client.

This is start-time fair queueing (Goyal, Vin and Cheng 1996). Each client, and each of its jobs, has a tag: the work
done for it. The one with the lowest tag is next. One that starts to wait gets the tag of the one that was last chosen,
so that it neither waits for the earlier work of others nor gets ahead of them for having been idle. A job that is too
large for a call is split, and its parts take turns with other jobs. A call does not mix short rows with much longer
ones, for which they would have to wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_PADDING = 2  # how many times longer a row may be than those of other jobs in its call, which wait for it


@dataclass(eq=False)
class RequestRows:
    """The rows of one request."""

    key: Hashable  # jobs with equal keys may share a call
    rows: Sequence[Any]  # the rows to run
    steps: Sequence[int]  # the time steps of each row
    client: str  # the client who sent it
    future: asyncio.Future[list[Any]]  # receives the list of results
    taken: int = 0  # rows that have been taken
    work: int = 0  # time steps of the rows that wait
    is_long: bool = False  # whether it had more steps than a call may have
    results: list[Any] = field(default_factory=list)
    tag: int = 0
    number: int = 0  # the order of arrival

    @property
    def left(self) -> int:
        """The number of rows that wait."""
        return len(self.rows) - self.taken


@dataclass(frozen=True, eq=False)
class RequestPart:
    """Rows of a job that run in one call."""

    job: RequestRows
    rows: Sequence[Any]
    first: int  # how many rows of the job precede them


@dataclass(eq=False)
class _Client:
    tag: int
    number: int  # the order of arrival
    clock: int = 0  # the tag of the job that was last chosen
    jobs: list[RequestRows] = field(default_factory=list)


class Turns:
    """Jobs that wait, by client.

    Args:
        most_rows: Maximum number of rows in a call.
        most_steps: Maximum number of time steps in a call, unless it has a single row.
    """

    def __init__(self, most_rows: int, most_steps: int) -> None:
        self._most_rows, self._most_steps = most_rows, most_steps
        self._clients: dict[str, _Client] = {}
        self._tags: dict[str, int] = {}  # tags of clients without a job
        self._clock = 0  # the tag of the client that was last chosen
        self._count = 0
        self.rows = 0
        self.rests = False  # whether long jobs must wait

    def add(self, job: RequestRows) -> None:
        """Add a job to the queue."""
        self._count += 1
        job.work = sum(job.steps)
        job.is_long = job.work > self._most_steps
        client = self._clients.get(job.client)
        if client is None:
            tag = max(self._clock, self._tags.pop(job.client, 0))
            client = self._clients[job.client] = _Client(tag, self._count)
        job.number, job.tag = self._count, client.clock
        client.jobs.append(job)
        self.rows += job.left

    def discard(self, job: RequestRows) -> None:
        """Forget a job whose client has left."""
        client = self._clients.get(job.client)
        if client is not None and job in client.jobs:
            self._remove(client, job)

    def take(self, share: float = 1.0) -> list[RequestPart]:
        """Return the parts of jobs that run in the next call.

        Args:
            share: The share of the maximum steps that the call may have.
        """
        parts: list[RequestPart] = []
        rows, work, longest = 0, 0, 0
        most_steps = int(share * self._most_steps)
        waiting = sorted(
            (client.tag, client.number, job.tag, job.number, job, client)
            for client in self._clients.values()
            for job in client.jobs
        )
        for *_, job, client in waiting:
            if rows >= self._most_rows:
                break
            if parts and job.key != parts[0].job.key:
                continue
            if job.is_long and self.rests:
                continue
            fits, count = self._fits(job), 0
            for steps in job.steps[job.taken : job.taken + self._most_rows - rows]:
                if (rows + count and work + steps > most_steps) or (parts and steps > MOST_PADDING * longest):
                    break
                count, work = count + 1, work + steps
            taken = job.steps[job.taken : job.taken + count]
            if count < job.left and parts and fits:  # the job fills the next call alone
                work -= sum(taken)
                continue
            if not count:
                continue
            longest = max(longest, *taken)
            parts.append(RequestPart(job, job.rows[job.taken : job.taken + count], job.taken))
            rows += count
            self._charge(client, job, count)
        return parts

    def _fits(self, job: RequestRows) -> bool:
        """Return whether the rest of a job fits in one call."""
        return job.left <= self._most_rows and job.work <= self._most_steps

    def has_next(self) -> bool:
        """Return whether `take` would return something."""
        jobs = (job for client in self._clients.values() for job in client.jobs)
        return any(not (job.is_long and self.rests) for job in jobs)

    def _charge(self, client: _Client, job: RequestRows, count: int) -> None:
        """Record that rows of a job run."""
        work = sum(job.steps[job.taken : job.taken + count])
        self._clock, client.clock = client.tag, job.tag
        client.tag += work
        job.tag += work
        job.work -= work
        job.taken += count
        self.rows -= count
        if not job.left:
            self._remove(client, job)

    def _remove(self, client: _Client, job: RequestRows) -> None:
        client.jobs.remove(job)
        self.rows -= job.left
        if client.jobs:
            return
        del self._clients[job.client]
        self._tags = {name: tag for name, tag in self._tags.items() if tag > self._clock}
        if self._clients:
            self._tags[job.client] = client.tag
        else:  # without waiting jobs, none has an advantage
            self._tags, self._clock = {}, 0
