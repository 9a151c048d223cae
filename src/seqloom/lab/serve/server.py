"""Start a server, and stop it without losing a request that it has taken.

SIGTERM or Ctrl-C: /readyz answers 503, and each answer closes its connection. For a grace time, requests are still
taken. Then the port is closed, requests that are being answered are finished, and the process ends.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn

from seqloom.core.errors import UserError
from seqloom.lab.serve import logs
from seqloom.lab.serve.app import build_app
from seqloom.lab.serve.connections import Connections, make_protocol
from seqloom.lab.serve.gate import ServerState
from seqloom.lab.serve.metrics import Metrics
from seqloom.lab.serve.runs import Runs
from seqloom.lab.serve.settings import ServeSettings

SPARE_FILES = 128  # file descriptors for everything but connections
BACKLOG = 2048
PING_SECONDS = 20.0  # between pings on a WebSocket, and for their answers: finds clients that have vanished
KEEP_ALIVE_SECONDS = 75  # `Connections` closes idle ones earlier
SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Site:
    """What is served, and where.

    Attributes:
        runs: The runs.
        settings: Address and limits.
        metrics: Counts what happens.
        token: The bearer token; None if requests need none.
    """

    runs: Runs
    settings: ServeSettings
    metrics: Metrics
    token: str | None = None


class Server(uvicorn.Server):  # type: ignore[misc]
    """A server of uvicorn with a time of grace before it stops, and with limits on idle connections.

    `serve_site` runs it until SIGTERM or Ctrl-C, or until `should_exit` is set to True.

    Args:
        site: What is served, and where.
        when_ready: Is called with the address once the server answers.

    Raises:
        UserError: If the address cannot be used.
    """

    def __init__(self, site: Site, when_ready: Callable[[str], None]) -> None:
        settings, self._state, self._when_ready = site.settings, ServerState(), when_ready
        self._listener = _bind(settings)
        self._open = Connections(_raise_file_limit(settings.max_connections))
        self._grace = settings.grace
        site.metrics.connections.set_function(lambda: len(self._open.all) + len(self._state.sockets))
        config = uvicorn.Config(
            build_app(site.runs, settings, site.metrics, self._state, site.token),
            http=make_protocol(self._open),
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            ws_max_size=settings.max_body,
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_per_message_deflate=False,  # a small message could unpack to a large one
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(settings.max_seconds) + 5,
        )
        super().__init__(config)

    @property
    def address(self) -> str:
        """The URL of the server."""
        host, port = self._listener.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def serve_site(self) -> None:
        """Serve until the server is asked to stop."""
        self.run(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        gc.collect()
        gc.freeze()  # a collection would look at every object of the libraries and stop all requests meanwhile
        if not self.should_exit:
            self._when_ready(self.address)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self._open.close_expired()
        stop: bool = await super().on_tick(counter)
        return stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_stopping = True
        logs.write("stopping", {"requests": self._state.in_flight, "sockets": len(self._state.sockets)})
        for ask_to_close in list(self._state.sockets):
            ask_to_close()
        waited = 0.0
        while waited < self._grace or (
            self._state.sockets and waited < self._grace + self.config.timeout_graceful_shutdown
        ):
            await asyncio.sleep(0.05)
            waited += 0.05
            if self.force_exit:
                break
        await super().shutdown(sockets=sockets)
        logs.write("stopped", {"taken": self._state.taken, "answered": self._state.answered})

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; unlike uvicorn's, this does not raise the signal again, so that the exit code is 0."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in SIGNALS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _bind(settings: ServeSettings) -> socket.socket:
    """Return a socket that listens on the address."""
    listener = None
    try:
        family, kind, _, _, place = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
    except OSError as error:
        if listener is not None:
            listener.close()
        where = f"{settings.host}:{settings.port}"
        raise UserError(f"cannot listen on {where}: {error.strerror}; choose another --host or --port") from None
    listener.setblocking(False)
    return listener


def _raise_file_limit(wanted: int) -> int:
    """Allow as many open files as connections, and return how many connections there may be."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft - SPARE_FILES))
