"""Connections that are idle, slow or too many.

The protocol of uvicorn waits for the first byte, and for the end of a request's headers, without a limit. Here a
connection without a request is closed after a while, and earlier if there are too many: the one that has been idle
longest makes room for a new one. A connection whose client does not read its answer is closed as well.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as BaseProtocol
except ImportError:  # httptools has no wheel for this platform
    from uvicorn.protocols.http.h11_impl import H11Protocol as BaseProtocol

HEADER_SECONDS = 20.0  # for the headers of a request to arrive, and between two requests
UNREAD_SECONDS = 30.0  # for a client to read what was written


class Connections:
    """The open connections of a server.

    Args:
        most: Above this number, the connection that has been idle longest is closed.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.all: set[Any] = set()
        self._idle: OrderedDict[Any, float] = OrderedDict()  # connection -> since when
        self._blocked: dict[Any, float] = {}  # connection whose client does not read -> since when

    def add(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        self.all.add(connection)
        self.set_idle(connection)
        while len(self.all) > self.most and self._idle:
            self.close(next(iter(self._idle)))

    def set_idle(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Note that a connection waits for a request from now on."""
        self._idle.pop(connection, None)
        self._idle[connection] = time.monotonic()

    def set_busy(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        self._idle.pop(connection, None)

    def set_blocked(self, connection: Any, is_blocked: bool) -> None:  # noqa: ANN401  # a protocol of uvicorn
        if is_blocked:
            self._blocked.setdefault(connection, time.monotonic())
        else:
            self._blocked.pop(connection, None)

    def remove(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        self.all.discard(connection)
        self._idle.pop(connection, None)
        self._blocked.pop(connection, None)

    def close(self, connection: Any) -> None:  # noqa: ANN401  # a protocol of uvicorn
        """Close a connection at once, without waiting for its client."""
        self.remove(connection)
        connection.transport.abort()

    def close_expired(self) -> int:
        """Close the connections that have waited too long, and return how many."""
        now = time.monotonic()
        expired = [c for c, since in self._idle.items() if now - since > HEADER_SECONDS]
        expired += [c for c, since in self._blocked.items() if now - since > UNREAD_SECONDS]
        for connection in expired:
            self.close(connection)
        return len(expired)


def make_protocol(connections: Connections) -> Callable[..., Any]:
    """Return the class of HTTP connections for uvicorn that reports to `connections`."""

    class WatchedProtocol(BaseProtocol):  # type: ignore[misc]
        """An HTTP connection that is closed when it is idle too long."""

        def connection_made(self, transport: Any) -> None:  # noqa: ANN401  # an asyncio transport
            super().connection_made(transport)
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.remove(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before and self in connections.all and not self.cycle.response_complete:
                connections.set_busy(self)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self in connections.all and (self.cycle is None or self.cycle.response_complete):
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
