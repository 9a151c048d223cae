"""Streams: the kept state of each, by a token that only its client knows."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Any

from seqloom.lab.serve import logs
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.model_version import ModelVersion
from seqloom.lab.serve.problems import RequestError
from seqloom.lab.serve.runs import Runs, ServedRun
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.stepper import Slot

TOKEN_BYTES = 18
MOST_EVENTS = 1024  # that wait for a client that reads server-sent events; older ones are dropped
MOST_LISTENERS = 4  # of server-sent events of one stream

Result = dict[str, Any]


class Stream:
    """One stream. It stays with the checkpoint that it began with until it is reset."""

    def __init__(self, token: str, run: ServedRun) -> None:
        self.token, self.run = token, run
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
    """All streams of a server.

    Args:
        runs: The served runs.
        settings: Limits.
        metrics: Counts streams and steps.
    """

    def __init__(self, runs: Runs, settings: ServeSettings, metrics: Metrics) -> None:
        self._runs, self._settings, self._metrics = runs, settings, metrics
        self._by_token: dict[str, Stream] = {}
        metrics.streams.set_function(lambda: len(self._by_token))

    def start(self, run_name: str | None) -> Stream:
        """Start a stream.

        Raises:
            RequestError: 404 for an unknown run, 409 if the run has no streams, 429 if there are too many.
        """
        run = self._runs.find(run_name)
        if len(self._by_token) >= self._settings.max_streams:
            most = f"{self._settings.max_streams:,}"
            raise RequestError(429, f"this server keeps at most {most} streams; stop one first", {"Retry-After": "10"})
        stream = Stream(secrets.token_urlsafe(TOKEN_BYTES), run)
        self._by_token[stream.token] = stream
        return stream

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
            RequestError: 413 or 422 if a step cannot be read; the stream has then not moved.
        """
        checked = stream.version.format.check_steps(steps)
        if not checked:
            return []
        # a client that leaves does not stop a step that has begun, so the lock must be held until its end
        return await asyncio.shield(asyncio.create_task(self._step(stream, checked, probabilities)))

    async def _step(self, stream: Stream, steps: list[Any], probabilities: bool) -> list[Result]:
        async with stream.lock:
            if self._by_token.get(stream.token) is not stream:
                raise RequestError(404, "the stream was stopped")
            before = stream.slot.steps
            results = await stream.run.steps.run((stream.version, probabilities), (stream.slot, steps), 1)
        numbered = [{"step": before + n} | result for n, result in enumerate(results, 1)]
        self._metrics.steps.labels(stream.run.name).inc(len(numbered))
        for listener in stream.listeners:
            for result in numbered:
                _put(listener, result)
        return numbered

    async def reset(self, stream: Stream) -> None:
        """Forget the steps of a stream; it goes on with the newest checkpoint."""
        async with stream.lock:
            if stream.version.stepper is not None:
                stream.version.stepper.close(stream.slot)
            stream.version = stream.run.version
            stream.slot = stream._open()

    async def stop(self, stream: Stream) -> None:
        """Forget a stream."""
        async with stream.lock:
            if self._by_token.pop(stream.token, None) is not None:
                stream.close()

    def listen(self, stream: Stream) -> asyncio.Queue[Result | None]:
        """Return a queue that receives each later result of a stream; None at its end."""
        if len(stream.listeners) >= MOST_LISTENERS:
            raise RequestError(429, f"at most {MOST_LISTENERS} clients can read the events of a stream")
        queue: asyncio.Queue[Result | None] = asyncio.Queue(MOST_EVENTS)
        stream.listeners.add(queue)
        return queue

    def drop_idle(self) -> int:
        """Drop the streams that were not used for a while, and return how many."""
        limit = time.monotonic() - self._settings.idle
        idle = [s for s in self._by_token.values() if s.used < limit and not s.lock.locked()]
        for stream in idle:
            del self._by_token[stream.token]
            stream.close()
        if idle:
            self._metrics.dropped.inc(len(idle))
            logs.write("idle streams dropped", {"count": len(idle)})
        return len(idle)

    def close_all(self) -> None:
        """End all streams, as the server stops."""
        for stream in self._by_token.values():
            stream.close()
        self._by_token.clear()


def _put(queue: asyncio.Queue[Result | None], item: Result | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(item)
