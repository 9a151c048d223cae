"""The routes of streams: HTTP with server-sent events, and WebSocket.

A WebSocket carries any number of streams. Each message is a JSON object with "do", and each has one answer:

    {"do": "start", "run": NAME}                          {"token", "run", "step": 0}
    {"do": "step", "token": T, "x": STEP}                 {"token", "step": N, "prediction", ...}
    {"do": "steps", "x": [[T, STEP], [U, STEP], ...]}     {"results": [...]}, one for each; a bad one has an "error"
    {"do": "reset", "token": T}                           {"token", "step": 0}
    {"do": "stop", "token": T}                            {"token", "stopped": true}

A refused message is answered with {"error": sentence, "status": HTTP status}; the WebSocket stays open.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from seqloom.lab.serve import bodies
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.streams import Stream, Streams
from seqloom.lab.web.bodies import parse_json, read_object
from seqloom.lab.web.gate import CLIENT, FACTS, HOLD, TURN, ServerState
from seqloom.lab.web.problems import RequestError, write_json

HEARTBEAT = 15.0  # seconds between comments in server-sent events, which keep proxies from closing the connection
GOING_AWAY = 1012  # close code "service restart"
IDLE = 1000


class StreamRoutes:
    """The routes of streams."""

    def __init__(self, streams: Streams, settings: ServeSettings, state: ServerState) -> None:
        self.streams, self.settings, self.state = streams, settings, state

    def add_to(self, app: FastAPI) -> None:
        add = app.add_api_route
        add("/v1/stream", self.start, methods=["POST"], status_code=201, summary="Start a stream")
        one = "/v1/stream/{token}"
        add(f"{one}/steps", self.step, methods=["POST"], summary="Run steps of a stream")
        add(f"{one}/reset", self.reset, methods=["POST"], summary="Forget the steps of a stream")
        add(one, self.stop, methods=["DELETE"], summary="Stop a stream")
        add(f"{one}/events", self.listen, summary="Read results as server-sent events", name="events")
        app.add_api_websocket_route("/v1/stream", self.connect)

    async def start(self, request: Request) -> Response:
        body = await read_object(request, bodies.START)
        stream = self.streams.start(body.get("run"), request.scope[CLIENT])
        request.scope[FACTS].update(run=stream.run.name)
        return write_json(_describe(stream) | {"idle_seconds": self.settings.idle}, 201)

    async def step(self, request: Request, token: str) -> Response:
        async with request.scope[TURN]:
            body = await read_object(request, bodies.STEPS)
        stream = self.streams.find(token, body.get("run"))
        request.scope[FACTS].update(run=stream.run.name, rows=len(body["steps"]))
        results = await self.streams.step(stream, body["steps"], body.get("probabilities", False))
        return write_json({"run": stream.run.name, "results": results})

    async def reset(self, token: str) -> Response:
        stream = self.streams.find(token)
        await self.streams.reset(stream)
        return write_json(_describe(stream))

    async def stop(self, token: str) -> Response:
        await self.streams.stop(self.streams.find(token))
        return write_json({"stopped": True})

    async def listen(self, request: Request, token: str) -> Response:
        stream = self.streams.find(token)
        queue = self.streams.listen(stream)
        request.scope[HOLD].last()  # as long as the stream

        async def write_events() -> AsyncIterator[bytes]:
            try:
                yield b": the results of each step follow\n\n"
                while not self.state.is_stopping:
                    try:
                        async with asyncio.timeout(HEARTBEAT):
                            result = await queue.get()
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    if result is None:
                        break
                    yield b"event: result\ndata: " + to_json(result) + b"\n\n"
                yield b"event: end\ndata: {}\n\n"
            finally:
                stream.listeners.discard(queue)

        return StreamingResponse(write_events(), media_type="text/event-stream")

    async def connect(self, socket: WebSocket) -> None:
        """Answer the messages of a WebSocket one after the other, until it is idle, closed or the server stops."""
        chosen = "bearer" if socket.scope.get("subprotocols", [])[:1] == ["bearer"] else None
        connection = _Connection(socket, self.settings.idle)
        self.state.sockets.add(connection.ask_to_close)
        try:
            await socket.accept(subprotocol=chosen)
            while not self.state.is_stopping:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                connection.begin()
                answer = await self._answer(message, socket.scope[CLIENT])
                await socket.send({"type": "websocket.send", "text": to_json(answer).decode()})
                connection.end()
            await socket.close(GOING_AWAY)
        except (WebSocketDisconnect, RuntimeError):  # the client has gone; starlette raises either
            return
        finally:
            connection.end(closed=True)
            self.state.sockets.discard(connection.ask_to_close)

    async def _answer(self, message: Any, client: str) -> dict[str, Any]:  # noqa: ANN401  # an ASGI message
        try:
            data = message.get("text") or message.get("bytes") or ""
            document = parse_json(data)
            if not isinstance(document, dict):
                raise RequestError(422, 'the message must be a JSON object such as {"do": "start"}')
            async with asyncio.timeout(self.settings.max_seconds):
                return await self._do(document, client)
        except RequestError as problem:
            return problem.document | {"status": problem.status}
        except TimeoutError:
            return {"error": f"the answer took more than {self.settings.max_seconds:g} s", "status": 503}

    async def _do(self, message: dict[str, Any], client: str) -> dict[str, Any]:
        match message:
            case {"do": "step", "token": str(token), "x": step}:
                return await self._step(token, step, message.get("run"))
            case {"do": "steps", "x": list(pairs)}:
                return {"results": await self._step_many(pairs)}
            case {"do": "start"}:
                return _describe(self.streams.start(_read_name(message.get("run")), client))
            case {"do": "reset", "token": str(token)}:
                stream = self.streams.find(token)
                await self.streams.reset(stream)
                return _describe(stream)
            case {"do": "stop", "token": str(token)}:
                await self.streams.stop(self.streams.find(token))
                return {"token": token, "stopped": True}
        raise RequestError(
            422, 'the message needs "do": start, step, steps, reset or stop, and the fields that go with it'
        )

    async def _step(self, token: str, step: object, run: object = None) -> dict[str, Any]:
        stream = self.streams.find(token, _read_name(run))
        return _answer_step(stream, await self.streams.step(stream, [step]))

    async def _step_many(self, pairs: list[Any]) -> list[dict[str, Any]]:
        """Run one step of each of several streams, in one call of the model."""
        if len(pairs) > self.settings.max_rows:
            raise RequestError(
                413, f"x is too long; this server reads at most {self.settings.max_rows:,} steps in a message"
            )
        for n, pair in enumerate(pairs):
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
                raise RequestError(422, f"x[{n}] must be a list of a token and a step")
        answers: list[dict[str, Any]] = [{} for _ in pairs]
        jobs, numbers = [], []
        for n, (token, step) in enumerate(pairs):
            try:
                jobs.append((self.streams.find(token), [step]))
                numbers.append(n)
            except RequestError as problem:
                answers[n] = {"token": token} | problem.document | {"status": problem.status}
        results = await self.streams.step_many(jobs)
        for n, (stream, _), found in zip(numbers, jobs, results, strict=True):
            if isinstance(found, RequestError):
                answers[n] = {"token": stream.token} | found.document | {"status": found.status}
            else:
                answers[n] = _answer_step(stream, found)
        return answers


def _answer_step(stream: Stream, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last result of a step; a text without a word has none."""
    return {"token": stream.token} | (results[-1] if results else {"step": stream.slot.steps, "prediction": None})


class _Connection:
    """A WebSocket that is closed when it is idle, or when the server stops and no message is being answered."""

    def __init__(self, socket: WebSocket, idle: float) -> None:
        self._socket, self._idle, self._busy = socket, idle, False
        self._loop = asyncio.get_running_loop()
        self._used = time.monotonic()
        self._timer = self._loop.call_later(idle, self._look)
        self._closing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._busy, self._used = True, time.monotonic()

    def end(self, closed: bool = False) -> None:
        self._busy = False
        if closed:
            self._timer.cancel()

    def ask_to_close(self) -> None:
        """Close now if no message is being answered; otherwise the route closes after its answer."""
        if not self._busy and self._closing is None:
            self._closing = self._loop.create_task(self._close(GOING_AWAY))

    def _look(self) -> None:
        rest = self._used + self._idle - time.monotonic()
        if rest <= 0 and not self._busy:
            self._closing = self._loop.create_task(self._close(IDLE))
        else:
            self._timer = self._loop.call_later(max(rest, 0.1), self._look)

    async def _close(self, code: int) -> None:
        try:
            await self._socket.close(code)
        except (RuntimeError, WebSocketDisconnect):  # the client was faster
            return


def _describe(stream: Stream) -> dict[str, Any]:
    return {"token": stream.token, "run": stream.run.name, "step": stream.slot.steps}


def _read_name(run: object) -> str | None:
    if run is not None and not isinstance(run, str):
        raise RequestError(422, "run must be a text")
    return run
