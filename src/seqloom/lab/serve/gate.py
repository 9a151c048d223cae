"""What every request passes: origin, token, size, number of requests and time; then the log and the metrics."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import to_json

from seqloom.lab.serve import logs
from seqloom.lab.serve.metrics import METHODS, Metrics
from seqloom.lab.serve.problems import RequestError
from seqloom.lab.serve.settings import LOOPBACK_NAMES, ServeSettings

OPEN_PATHS = ("/healthz", "/readyz")  # are answered without a token and above the limit of requests
PAGE_PATHS = ("/", "/page.js", "/page.css")  # hold no data; the page asks for the token
FACTS = "seqloom.facts"  # in the scope: what a route adds to the log
UNKNOWN_ROUTE = "unknown"

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass
class ServerState:
    """What the parts of a server share.

    Attributes:
        is_stopping: Whether the server has been asked to stop.
        in_flight: Requests being answered.
        taken: Requests whose headers have arrived.
        answered: Requests whose answer was written completely.
        sockets: Functions that ask the open WebSockets to close.
    """

    is_stopping: bool = False
    in_flight: int = 0
    taken: int = 0
    answered: int = 0
    sockets: set[Callable[[], None]] = field(default_factory=set)


class Gate:
    """An ASGI application around the routes.

    Args:
        app: The routes.
        settings: Limits.
        token: The bearer token; None if requests need none.
        metrics: Counts requests.
        state: Shared with the server.
    """

    def __init__(
        self, app: App, settings: ServeSettings, token: str | None, metrics: Metrics, state: ServerState
    ) -> None:
        self.app, self.settings, self.metrics, self.state = app, settings, metrics, state
        self._token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, facts = time.perf_counter(), 0, scope.setdefault(FACTS, {})
        counts = scope["path"] not in OPEN_PATHS

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                headers += [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
                if self.state.is_stopping:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.state.answered += 1

        self.state.taken += 1
        self.state.in_flight += counts
        self.metrics.in_flight.set(self.state.in_flight)
        try:
            try:
                self._check(scope, counts)
                async with asyncio.timeout(None if facts.get("endless") else self.settings.max_seconds) as timer:
                    scope["seqloom.timer"] = timer
                    await self.app(scope, receive, send_on)
            except RequestError as problem:
                await send_problem(send_on, problem)
            except TimeoutError:
                if not status:
                    seconds = f"{self.settings.max_seconds:g}"
                    await send_problem(
                        send_on, RequestError(503, f"the answer took more than {seconds} s; send fewer or shorter rows")
                    )
            except Exception:
                logs.write("internal error", level=logging.ERROR, failed=True)
                if not status:
                    await send_problem(
                        send_on, RequestError(500, "internal error of the server; its log has the place")
                    )
        finally:
            self.state.in_flight -= counts
            self.metrics.in_flight.set(self.state.in_flight)
            self._record(scope, scope["method"], status or 499, time.perf_counter() - start)  # 499: the client left

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.perf_counter(), 101
        scope.setdefault(FACTS, {})
        try:
            try:
                self._check(scope, False)
                if len(self.state.sockets) >= self.settings.max_connections or self.state.is_stopping:
                    raise RequestError(503, "this server has too many WebSockets, or is stopping; try again later")
            except RequestError as problem:
                status = problem.status
                await refuse_socket(scope, receive, send, problem)
                return
            await self.app(scope, receive, send)
        except Exception:
            status = 500
            logs.write("internal error", level=logging.ERROR, failed=True)
        finally:
            self._record(scope, "WEBSOCKET", status, time.perf_counter() - start)

    def _check(self, scope: Scope, counts: bool) -> None:
        """Raise a RequestError if the request may not pass."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        self._check_origin(headers)
        if self._token is not None and scope["path"] not in (*OPEN_PATHS, *PAGE_PATHS):
            self._check_token(scope, headers)
        if counts and self.state.in_flight > self.settings.max_requests:
            most = self.settings.max_requests
            raise RequestError(
                503, f"this server answers at most {most} requests at a time; try again", {"Retry-After": "1"}
            )

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Refuse pages of other sites, also those that give a name of theirs the address of this machine."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.settings.is_local:
            name = urlsplit(f"//{host}").hostname if _is_host(host) else None
            if name not in (*LOOPBACK_NAMES, "127.0.0.1", "::1", self.settings.host):
                raise RequestError(403, "the Host header must name this machine, such as localhost")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host:
            raise RequestError(403, "requests from pages of another origin are refused")

    def _check_token(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        given = headers.get(b"authorization", b"")
        if scope["type"] == "websocket" and not given:  # a page cannot set headers of a WebSocket
            protocols = scope.get("subprotocols", [])
            given = (
                b"Bearer " + protocols[1].encode("latin-1") if protocols[:1] == ["bearer"] and protocols[1:] else b""
            )
        assert self._token is not None
        kind, _, token = given.partition(b" ")
        if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise RequestError(
                401, "this server needs a token: send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or UNKNOWN_ROUTE
        self.metrics.count_request(route, method, status, seconds)
        shown = method if method in METHODS else "other"
        logs.write(
            "request",
            {"method": shown, "route": route, "status": status, "ms": round(1000 * seconds, 2)} | scope[FACTS],
        )


def _is_host(host: str) -> bool:
    """Return whether a Host header can be split into a name and a port."""
    try:
        return bool(urlsplit(f"//{host}").hostname) and urlsplit(f"//{host}").port != -1
    except ValueError:
        return False


def too_large(limit: int) -> RequestError:
    """Return the problem of a body over the limit."""
    return RequestError(
        413, f"the body is larger than {limit:,} bytes, the limit of this server", {"Connection": "close"}
    )


async def send_problem(send: Send, problem: RequestError) -> None:
    """Answer a request with a problem."""
    body = to_json(problem.document)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def refuse_socket(scope: Scope, receive: Receive, send: Send, problem: RequestError) -> None:
    """Refuse a WebSocket with the status and the sentence of a problem."""
    await receive()  # websocket.connect
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    body = to_json(problem.document)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "websocket.http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
