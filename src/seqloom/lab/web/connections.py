"""Connections that are idle, slow or too many.

The protocol of uvicorn waits for the first byte, and for the end of a request's headers, without a limit. Here a
connection without a request is closed after a while, or earlier if there are too many: the longest idle connection of
the same client, or of the client with the most connections, makes room for a new one. A connection whose client does
not read its answer is closed as well. While others have requests, a client with many connections that wait for their
first answers has further ones read only as those are answered, so that they do not delay requests of others.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from seqloom.lab.web.clients import Clients

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as BaseProtocol
except ImportError:  # httptools has no wheel for this platform
    from uvicorn.protocols.http.h11_impl import H11Protocol as BaseProtocol

HEADER_SECONDS = 20.0  # seconds for the headers of a request to arrive, and between two requests
UNREAD_SECONDS = 30.0  # seconds for a client to read what was written
MOST_AT_ONCE = 16  # connections of a client that are read before their first answers, while others have requests


class Connections:
    """The open connections of a server.

    Args:
        most: Maximum number of connections.
        most_of_client: Maximum number of connections per client.
        has_others: Returns whether requests of other clients are being answered.
    """

    def __init__(self, most: int, most_of_client: int, has_others: Callable[[str], bool] = lambda _: False) -> None:
        self.most, self.most_of_client, self._has_others = most, most_of_client, has_others
        self._unanswered: dict[str, set[Any]] = {}  # by client: connections whose first request has no answer yet
        self._waiting: dict[str, dict[Any, Callable[[], Any]]] = {}  # by client: connection -> what reads it
        self.all: dict[Any, str | None] = {}  # connection -> its client
        self._by_client: dict[str | None, set[Any]] = {}
        self._idle: dict[str | None, OrderedDict[Any, float]] = {}  # by client: connection -> since when
        self._blocked: dict[Any, float] = {}  # connection whose client does not read -> since when

    def add(self, connection: Any, client: str | None) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Add a new connection; if there are now too many, close one.

        Args:
            connection: The connection.
            client: Its client; None for a trusted proxy, which has no separate limit.
        """
        self.all[connection] = client
        self._by_client.setdefault(client, set()).add(connection)
        self.set_idle(connection)
        if client is not None and len(self._by_client[client]) > self.most_of_client:
            self.close(self._find_longest_idle(client))  # the new one, if all others are in use
        elif len(self.all) > self.most:
            largest = max(self._by_client, key=lambda one: len(self._by_client[one]))
            self.close(self._find_longest_idle(largest) or connection)

    def may_read(self, connection: Any, read: Callable[[], Any]) -> bool:  # noqa: ANN401  # a protocol of uvicorn
        """Return whether the first bytes of a connection may be read; if not yet, call `read` as soon as they may."""
        client = self.all.get(connection)
        if client is None:
            return True
        unanswered = self._unanswered.setdefault(client, set())
        if len(unanswered) >= MOST_AT_ONCE and self._has_others(client):
            self._waiting.setdefault(client, {})[connection] = read
            return False
        unanswered.add(connection)
        return True

    def _find_longest_idle(self, client: str | None) -> Any:  # noqa: ANN401  # a protocol of uvicorn
        """Return the connection of a client that has been idle longest, or None."""
        return next(iter(self._idle.get(client, ())), None)

    def set_answered(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Record that a request of a connection has an answer, or that there will be none."""
        client = self.all.get(connection)
        if client is None:
            return
        unanswered, waiting = self._unanswered.get(client, set()), self._waiting.get(client, {})
        unanswered.discard(connection)
        waiting.pop(connection, None)
        while waiting and len(unanswered) < MOST_AT_ONCE:
            unanswered.add(following := next(iter(waiting)))
            waiting.pop(following)()
        if not unanswered:
            self._unanswered.pop(client, None)
        if not waiting:
            self._waiting.pop(client, None)

    def set_idle(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Record that a connection now waits for a request."""
        self.set_busy(connection)
        self._idle.setdefault(self.all[connection], OrderedDict())[connection] = time.monotonic()

    def set_busy(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        client = self.all.get(connection)
        if idle := self._idle.get(client):
            idle.pop(connection, None)
            if not idle:
                del self._idle[client]

    def set_blocked(self, connection: Any, is_blocked: bool) -> None:  # noqa: ANN401  # a protocol of uvicorn
        if is_blocked:
            self._blocked.setdefault(connection, time.monotonic())
        else:
            self._blocked.pop(connection, None)

    def remove(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        if connection not in self.all:
            return
        self.set_busy(connection)
        self.set_answered(connection)
        self._blocked.pop(connection, None)
        client = self.all.pop(connection)
        self._by_client[client].discard(connection)
        if not self._by_client[client]:
            del self._by_client[client]

    def close(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Close a connection at once, without waiting for its client."""
        self.remove(connection)
        connection.transport.abort()

    def close_expired(self) -> int:
        """Close the connections that have waited too long, and return how many."""
        now = time.monotonic()
        waiting = ((c, since) for idle in self._idle.values() for c, since in idle.items())
        expired = {c for c, since in waiting if now - since > HEADER_SECONDS}
        expired |= {c for c, since in self._blocked.items() if now - since > UNREAD_SECONDS}
        for connection in expired:
            self.close(connection)
        return len(expired)


def make_protocol(connections: Connections, clients: Clients) -> Callable[..., Any]:
    """Return the class of HTTP connections for uvicorn that reports to `connections`."""

    class WatchedProtocol(BaseProtocol):  # type: ignore[misc]
        """An HTTP connection that is closed when it has been idle too long."""

        has_started = False  # whether bytes have been read
        first = b""  # bytes that arrived before

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # an asyncio transport
            super().connection_made(transport)
            address = self.client[0] if self.client else None
            connections.add(self, None if clients.is_proxy(address) else clients.find(address))

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.has_started:
                self._read(data)
                return
            is_new, self.first = not self.first, self.first + data
            if is_new and connections.may_read(self, lambda: self.loop.call_soon(self._start)):
                self._start()
            else:
                self.flow.pause_reading()

        def _start(self) -> None:
            """Read the first bytes of a connection."""
            if not self.transport.is_closing():  # its client may have left while they waited
                self.has_started = True
                self.flow.resume_reading()
                first, self.first = self.first, b""
                self._read(first)

        def _read(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before and self in connections.all and not self.cycle.response_complete:
                connections.set_busy(self)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self in connections.all and (self.cycle is None or self.cycle.response_complete):
                connections.set_answered(self)
                connections.set_idle(self)

        def handle_websocket_upgrade(self, *args: Any) -> None:  # noqa: ANN401  # as uvicorn calls it
            connections.remove(self)
            super().handle_websocket_upgrade(*args)

        def pause_writing(self) -> None:
            super().pause_writing()
            connections.set_blocked(self, True)

        def resume_writing(self) -> None:
            super().resume_writing()
            connections.set_blocked(self, False)

    return WatchedProtocol
