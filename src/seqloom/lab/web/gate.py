"""The checks that every request passes: origin, credentials, body, limits, time, cancellation; then the log."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from seqloom.lab.web import logs
from seqloom.lab.web.bodies import ClientLeftError, receive_body
from seqloom.lab.web.clients import Clients, Shares
from seqloom.lab.web.lane import Lane
from seqloom.lab.web.problems import BUG, RequestError
from seqloom.lab.web.settings import LOOPBACK_NAMES, WebSettings

HEALTH_PATHS = ("/healthz", "/readyz")  # answered even above the limit of requests
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET")  # others count as "other"
FACTS = "seqloom.facts"  # in the scope: what a route adds to the log
CLIENT = "seqloom.client"  # in the scope: who sends the request
HOLD = "seqloom.hold"  # in the scope: the place that the request takes
TURN = "seqloom.turn"  # in the scope: an asynchronous context in which a large body may be read
UNKNOWN_ROUTE = "unknown"
CLIENT_LEFT = 499  # logged as the status of a request whose client closed the connection before the end of its answer

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
Headers = dict[bytes, bytes]


@dataclass
class ServerState:
    """State that the parts of a server share."""

    is_stopping: bool = False  # whether the server has been asked to stop
    taken: int = 0  # requests whose headers have arrived
    answered: int = 0  # requests whose answer was written completely
    sockets: set[Callable[[], None]] = field(default_factory=set)  # functions that ask the open WebSockets to close


@dataclass(frozen=True)
class Policy:
    """The policy in which servers differ."""

    # Raises a RequestError if the scope and the headers of a request lack the credentials.
    check: Callable[[Scope, Headers], None]
    # Called with the route, method, status and seconds of each request.
    observe: Callable[[str, str, int, float], None] = lambda *_: None
    checks_host: bool = True  # whether the Host header must name this machine if only this machine can connect


class Hold:
    """The slot of a request among those being answered, and its time limit."""

    def __init__(self, requests: Shares, client: str, timer: asyncio.Timeout) -> None:
        self._requests, self._client, self._timer = requests, client, timer
        self._is_released = False
        requests.take(client)

    def release(self) -> None:
        """Release the slot for another request."""
        if not self._is_released:
            self._is_released = True
            self._requests.give_back(self._client)

    def last(self) -> None:
        """Let the answer last as long as its connection, without occupying a slot."""
        self._timer.reschedule(None)
        self.release()


class Gate:
    """An ASGI application around the routes."""

    def __init__(self, app: App, settings: WebSettings, policy: Policy, state: ServerState) -> None:
        self.app, self.settings, self.policy, self.state = app, settings, policy, state
        self.clients = Clients(settings.trusted_proxies)
        self.requests, self.receiving, self.sockets = (
            Shares(total, settings.limit_client(total))
            for total in (settings.max_requests, settings.max_receiving, settings.max_connections)
        )
        self.lane = Lane(self.requests.is_used_by_others)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            scope.setdefault(FACTS, {})
            scope[CLIENT] = self.clients.find((scope.get("client") or [None])[0], scope["headers"])
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status = time.perf_counter(), 0
        is_complete = has_left = False

        async def send_on(message: Message) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = list(message.get("headers", ()))
                headers += [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
                if self.state.is_stopping:
                    headers.append((b"connection", b"close"))
                message = {**message, "headers": headers}
            ends = message["type"] == "http.response.body" and not message.get("more_body")
            is_complete = is_complete or ends
            await send(message)
            self.state.answered += ends

        def leave() -> bool:
            """Record that the client has left; return whether its answer was incomplete."""
            nonlocal has_left
            has_left = not is_complete
            return has_left

        self.state.taken += 1
        try:
            await self._pass_on(scope, receive, send_on, leave)
        except RequestError as problem:
            await problem.response(scope, receive, send_on)
        except ClientLeftError:
            leave()
        except TimeoutError:
            if not status:
                sentence = f"the answer took more than {self.settings.max_seconds:g} s; send fewer or shorter rows"
                await RequestError(503, sentence).response(scope, receive, send_on)
        except Exception:
            logs.write("internal error", level=logging.ERROR, failed=True)
            if not status:
                await BUG.response(scope, receive, send_on)
        finally:
            shown = CLIENT_LEFT if has_left or not status else status
            self._record(scope, scope["method"], shown, time.perf_counter() - start)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, leave: Callable[[], bool]) -> None:
        """Check a request, receive its body and let the routes answer it, unless its client leaves."""
        headers = dict(scope["headers"])
        self._check_origin(headers)
        self.policy.check(scope, headers)
        body, length = b"", headers.get(b"content-length", b"0").decode("latin-1")
        if length != "0" or b"transfer-encoding" in headers:
            body = await receive_body(
                receive, length, self.settings.max_body, self.receiving, scope[CLIENT], self.lane.find_wait
            )
        self._check_requests(scope)
        scope[TURN] = self.lane.take_turn(scope[CLIENT], len(body))
        async with asyncio.timeout(self.settings.max_seconds) as timer:
            hold = scope[HOLD] = Hold(self.requests, scope[CLIENT], timer)
            if scope["path"] in HEALTH_PATHS:
                hold.release()
            try:
                await _cancel_when_left(self.app(scope, _replay(body), send), receive, leave)
            finally:
                hold.release()

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, status, client = time.perf_counter(), 101, scope[CLIENT]
        try:
            headers = dict(scope["headers"])
            self._check_origin(headers)
            self.policy.check(scope, headers)
            if self.sockets.exceeds_client(client):
                raise RequestError(429, f"a client can have at most {self.sockets.of_one} WebSockets; close one first")
            if self.sockets.exceeds_total() or self.state.is_stopping:
                raise RequestError(503, "this server has too many WebSockets, or is stopping; try again later")
            self.sockets.take(client)
            try:
                await self.app(scope, receive, send)
            finally:
                self.sockets.give_back(client)
        except RequestError as problem:
            status = problem.status
            await refuse_socket(scope, receive, send, problem)
        except Exception:
            status = 500
            logs.write("internal error", level=logging.ERROR, failed=True)
        finally:
            self._record(scope, "WEBSOCKET", status, time.perf_counter() - start)

    def _check_requests(self, scope: Scope) -> None:
        """Refuse a request if too many are being answered."""
        if scope["path"] in HEALTH_PATHS:
            return
        wait = {"Retry-After": "1"}
        if self.requests.exceeds_total():
            raise RequestError(
                503, f"this server answers at most {self.requests.total} requests at a time; try again", wait
            )
        if self.requests.exceeds_client(scope[CLIENT]):
            sentence = f"this server answers at most {self.requests.of_one} requests of a client at a time"
            raise RequestError(429, f"{sentence}; wait for an answer first", wait)

    def _check_origin(self, headers: Headers) -> None:
        """Refuse pages of other sites, including those whose name resolves to this machine (DNS rebinding)."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.settings.is_local and self.policy.checks_host:
            name = urlsplit(f"//{host}").hostname if _is_host(host) else None
            if name not in (*LOOPBACK_NAMES, "127.0.0.1", "::1", self.settings.host):
                raise RequestError(403, "the Host header must name this machine, such as localhost")
        origin = headers.get(b"origin")
        is_foreign = origin is not None and origin.decode("latin-1").lower().partition("://")[2] != host
        fetched_by = headers.get(b"sec-fetch-site", b"none")  # of current browsers, also where there is no Origin
        if fetched_by not in (b"none", b"same-origin") and headers.get(b"sec-fetch-mode") != b"navigate":
            is_foreign = True
        if is_foreign:
            raise RequestError(403, "requests from pages of another origin are refused")

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or UNKNOWN_ROUTE
        self.policy.observe(route, method if method in METHODS else "other", status, seconds)
        shown = method if method in METHODS else "other"
        logs.write(
            "request",
            {"method": shown, "route": route, "status": status, "ms": round(1000 * seconds, 2)} | scope[FACTS],
        )


async def _cancel_when_left(work: Coroutine[Any, Any, None], receive: Receive, leave: Callable[[], bool]) -> None:
    """Do some work; if the client leaves before its end, cancel it and raise a ClientLeftError."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not leave():  # the answer is complete, and the work about to end
            await asyncio.Event().wait()

    working, watching = asyncio.create_task(work), asyncio.create_task(watch())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeftError
        working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError, RequestError):
                await working


def _replay(body: bytes) -> Receive:
    """Return the ASGI `receive` function of a body that was read in full."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the work is cancelled when the client leaves
        return {"type": "http.disconnect"}

    return receive


def _is_host(host: str) -> bool:
    """Return whether a Host header can be split into a name and a port."""
    try:
        return bool(urlsplit(f"//{host}").hostname) and urlsplit(f"//{host}").port != -1
    except ValueError:
        return False


async def refuse_socket(scope: Scope, receive: Receive, send: Send, problem: RequestError) -> None:
    """Refuse a WebSocket with the status and the sentence of a problem."""
    await receive()  # websocket.connect
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
    else:
        await problem.response(scope, receive, send)
