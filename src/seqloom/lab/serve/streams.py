"""Streams: the kept state of each, by a token that only its client knows."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, cast

from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.model_version import ModelVersion
from seqloom.lab.serve.runs import Runs, ServedRun
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.stepper import Slot
from seqloom.lab.web import logs
from seqloom.lab.web.clients import Shares
from seqloom.lab.web.problems import RequestError

TOKEN_BYTES = 18
MOST_EVENTS = 1024  # events that wait for a client; older ones are dropped
MOST_LISTENERS = 4  # listeners to the server-sent events of one stream

Result = dict[str, Any]


class Stream:
    """One stream. It stays with the checkpoint that it began with until it is reset."""

    def __init__(self, token: str, run: ServedRun, client: str) -> None:
        self.token, self.run, self.client = token, run, client
        self.version: ModelVersion = run.version
        self.slot = self._open()
        self.lock = asyncio.Lock()  # steps of one stream run one after the other
        self.used = time.monotonic()
        self.listeners: set[asyncio.Queue[Result | None]] = set()

    def _open(self) -> Slot:
        if self.version.stepper is None:
            raise RequestError(409, f"run {self.run.name} has no streams: {self.version.no_streams}; use /v1/predict")
        return self.version.stepper.open()

    def close(self) -> None:
        if self.version.stepper is not None:
            self.version.stepper.close(self.slot)
        for listener in self.listeners:
            _put(listener, None)


class Streams:
    """All streams of a server."""

    def __init__(self, runs: Runs, settings: ServeSettings, metrics: Metrics) -> None:
        self._runs, self._settings, self._metrics = runs, settings, metrics
        self._by_token: dict[str, Stream] = {}
        self._shares = Shares(settings.max_streams, settings.limit_client(settings.max_streams))
        metrics.streams.set_function(lambda: len(self._by_token))

    def start(self, run_name: str | None, client: str) -> Stream:
        """Start a stream of a client.

        Raises:
            RequestError: 404 for an unknown run, 409 if the run has no streams, 429 if there are too many.
        """
        run = self._runs.find(run_name)
        for is_full, most, whose in (
            (self._shares.exceeds_total(), self._shares.total, ""),
            (self._shares.exceeds_client(client), self._shares.of_one, " of a client"),
        ):
            if is_full:
                sentence = f"this server keeps at most {most:,} streams{whose}; stop one first"
                raise RequestError(429, sentence, {"Retry-After": "10"})
        stream = Stream(secrets.token_urlsafe(TOKEN_BYTES), run, client)
        self._by_token[stream.token] = stream
        self._shares.take(client)
        return stream

    def _drop(self, stream: Stream) -> None:
        """Forget a stream."""
        if self._by_token.pop(stream.token, None) is not None:
            self._shares.give_back(stream.client)
            stream.close()

    def find(self, token: str, run_name: str | None = None) -> Stream:
        """Return the stream of a token.

        Raises:
            RequestError: 404 if there is none, 403 if it belongs to another run than the request names.
        """
        stream = self._by_token.get(token)
        if stream is None:
            raise RequestError(
                404, "there is no stream with this token; it was stopped, or dropped because it was idle"
            )
        if run_name is not None and self._runs.find(run_name) is not stream.run:
            raise RequestError(403, "the token belongs to a stream of another run; start a stream of this run")
        stream.used = time.monotonic()
        return stream

    async def step(self, stream: Stream, steps: list[Any], probabilities: bool = False) -> list[Result]:
        """Run steps of a stream and return a result for each, with the number of the step.

        Raises:
            RequestError: 413 or 422 if a step cannot be read; then the stream has not advanced.
        """
        if not steps:
            return []
        found = (await self.step_many([(stream, steps)], probabilities))[0]
        if isinstance(found, RequestError):
            raise found
        return found

    async def step_many(
        self, jobs: Sequence[tuple[Stream, list[Any]]], probabilities: bool = False
    ) -> list[list[Result] | RequestError]:
        """Run steps of several streams, in one call of the model if they belong to one checkpoint.

        Args:
            jobs: Streams with their steps. A stream that occurs again waits for its earlier steps.
            probabilities: Whether results have the probabilities of all classes.

        Returns:
            For each stream the results of its steps, or the problem with them.
        """
        answers: list[list[Result] | RequestError] = [[] for _ in jobs]
        groups: dict[ModelVersion, list[int]] = {}
        waiting, seen = [], set()
        for n, (stream, _) in enumerate(jobs):
            if stream.lock.locked() or stream.token in seen:
                waiting.append(n)
            else:
                seen.add(stream.token)
                groups.setdefault(stream.version, []).append(n)
        for numbers in [*groups.values(), *([n] for n in waiting)]:
            # a client that leaves does not stop a step that has begun, so the locks must be held until its end
            some = await asyncio.shield(asyncio.create_task(self._step([jobs[n] for n in numbers], probabilities)))
            for n, answer in zip(numbers, some, strict=True):
                answers[n] = answer
        return answers

    async def _step(
        self, jobs: Sequence[tuple[Stream, list[Any]]], probabilities: bool
    ) -> list[list[Result] | RequestError]:
        """Run one step for each of several distinct streams of one checkpoint."""
        for stream, _ in jobs:
            await stream.lock.acquire()
        try:
            return await self._step_locked(jobs, probabilities)
        finally:
            for stream, _ in jobs:
                stream.lock.release()

    async def _step_locked(
        self, jobs: Sequence[tuple[Stream, list[Any]]], probabilities: bool
    ) -> list[list[Result] | RequestError]:
        version, run = jobs[0][0].version, jobs[0][0].run
        answers: list[list[Result] | RequestError] = self._check(jobs, version)
        good = [n for n, answer in enumerate(answers) if not isinstance(answer, RequestError)]
        if not good:
            return answers
        before = [stream.slot.steps for stream, _ in jobs]
        work = [(jobs[n][0].slot, answers[n]) for n in good]
        counts = [self._count_steps(version, cast(list[Any], steps)) for _, steps in work]
        results = await run.steps.run((version, probabilities), work, counts, jobs[0][0].client)
        for n, found in zip(good, results, strict=True):
            answers[n] = found
            if not isinstance(found, RequestError):
                for k, result in enumerate(found, before[n] + 1):
                    result["step"] = k
                for listener in jobs[n][0].listeners:
                    for result in found:
                        _put(listener, result)
        run.count_steps(sum(len(found) for found in results if not isinstance(found, RequestError)))
        return answers

    def _check(self, jobs: Sequence[tuple[Stream, list[Any]]], version: ModelVersion) -> list[Any]:
        """Return, for each stream, its checked steps, or the problem with them."""
        if all(self._by_token.get(stream.token) is stream and stream.version is version for stream, _ in jobs):
            try:
                checked = iter(version.format.check_steps([step for _, steps in jobs for step in steps], False))
                found = [[next(checked) for _ in steps] for _, steps in jobs]
                if max(self._count_steps(version, steps) for steps in found) <= self._settings.max_steps:
                    return found
            except RequestError:  # the steps of one stream are wrong
                pass
        return [self._check_one(stream, steps, version) for stream, steps in jobs]

    def _check_one(self, stream: Stream, steps: list[Any], version: ModelVersion) -> list[Any] | RequestError:
        if self._by_token.get(stream.token) is not stream:
            return RequestError(404, "the stream was stopped")
        if stream.version is not version:
            return RequestError(409, "the stream was reset meanwhile; send the step again")
        try:
            checked = version.format.check_steps(steps)
        except RequestError as error:
            return error
        count, most = self._count_steps(version, checked), self._settings.max_steps
        if len(checked) > 1 and count > most:
            sentence = f"the steps have {count:,} time steps together; this server reads at most {most:,} of a stream"
            return RequestError(413, f"{sentence} at a time; send fewer")
        return checked

    def _count_steps(self, version: ModelVersion, steps: list[Any]) -> int:
        """Return the approximate number of time steps that the model reads for steps of a stream."""
        assert version.stepper is not None
        return version.stepper.reads * sum(map(version.format.count_steps, steps))

    async def reset(self, stream: Stream) -> None:
        """Forget the steps of a stream; it continues with the newest checkpoint."""
        async with stream.lock:
            if stream.version.stepper is not None:
                stream.version.stepper.close(stream.slot)
            stream.version = stream.run.version
            stream.slot = stream._open()

    async def stop(self, stream: Stream) -> None:
        """Forget a stream."""
        async with stream.lock:
            self._drop(stream)

    def listen(self, stream: Stream) -> asyncio.Queue[Result | None]:
        """Return a queue that receives each later result of a stream; None at its end."""
        if len(stream.listeners) >= MOST_LISTENERS:
            raise RequestError(429, f"at most {MOST_LISTENERS} clients can read the events of a stream")
        queue: asyncio.Queue[Result | None] = asyncio.Queue(MOST_EVENTS)
        stream.listeners.add(queue)
        return queue

    def drop_idle(self) -> int:
        """Drop the streams that have not been used for a while, and return their number."""
        limit = time.monotonic() - self._settings.idle
        idle = [s for s in self._by_token.values() if s.used < limit and not s.lock.locked()]
        for stream in idle:
            self._drop(stream)
        if idle:
            self._metrics.dropped.inc(len(idle))
            logs.write("idle streams dropped", {"count": len(idle)})
        return len(idle)

    def close_all(self) -> None:
        """End all streams, as the server stops."""
        for stream in list(self._by_token.values()):
            self._drop(stream)


def _put(queue: asyncio.Queue[Result | None], item: Result | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(item)
