"""Start a server, and stop it without losing a request that it has accepted.

SIGTERM or Ctrl-C: /readyz answers 503, and each answer closes its connection. For a grace period, requests are still
accepted. Then the port is closed, requests that are being answered are finished, and the process ends.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from seqloom.core.errors import UserError
from seqloom.lab.web import logs
from seqloom.lab.web.connections import Connections, make_protocol
from seqloom.lab.web.gate import Gate
from seqloom.lab.web.settings import WebSettings

SPARE_FILES = 128  # file descriptors for everything but connections
BACKLOG = 2048
MOST_MESSAGE = 2**20  # bytes of a message on a WebSocket
HANDSHAKE_SECONDS = 10.0  # seconds for a TLS handshake
PING_SECONDS = 20.0  # seconds between pings on a WebSocket, and for their answers: detects vanished clients
KEEP_ALIVE_SECONDS = 75  # `Connections` closes idle ones earlier
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):  # type: ignore[misc]
    """A uvicorn server with a grace period before it stops, and with limits on connections.

    `serve_site` runs it until SIGTERM or Ctrl-C, or until `should_exit` is set to True.

    Args:
        when_ready: Called with the address once the server answers.
        finish_seconds: Time for the requests that are being answered as it stops; by default what the settings allow
            each request.

    Raises:
        UserError: If the address, or the certificate, cannot be used.
    """

    def __init__(self, app: Gate, when_ready: Callable[[str], None], finish_seconds: int | None = None) -> None:
        settings, self._state, self._when_ready = app.settings, app.state, when_ready
        _check_certificate(settings)
        self._listener = _bind(settings)
        most = _raise_file_limit(settings.max_connections)
        self.connections = Connections(most, settings.limit_client(most), app.requests.is_used_by_others)
        self._grace, self._requests = settings.grace, app.requests
        self._scheme = "http" if settings.tls_cert is None else "https"
        config = uvicorn.Config(
            app,
            http=make_protocol(self.connections, app.clients),
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `Clients` reads them, only from trusted proxies
            backlog=BACKLOG,
            ws_max_size=min(settings.max_body, MOST_MESSAGE),
            ws_ping_interval=PING_SECONDS,
            ws_ping_timeout=PING_SECONDS,
            ws_per_message_deflate=False,  # a small message could unpack to a large one
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(settings.max_seconds) + 5 if finish_seconds is None else finish_seconds,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
        )
        super().__init__(config)

    @property
    def address(self) -> str:
        """The URL of the server."""
        host, port = self._listener.getsockname()[:2]
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def serve_site(self) -> None:
        """Serve until the server is asked to stop."""
        self.run(sockets=[self._listener])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # the base class has no time limit for a TLS handshake
        config, loop = self.config, asyncio.get_running_loop()

        def make_connection() -> asyncio.Protocol:
            connection: asyncio.Protocol = config.http_protocol_class(
                config=config, server_state=self.server_state, app_state=self.lifespan.state
            )
            return connection

        limit = None if config.ssl is None else HANDSHAKE_SECONDS
        server = await loop.create_server(
            make_connection, sock=self._listener, ssl=config.ssl, ssl_handshake_timeout=limit, backlog=BACKLOG
        )
        self.servers = [server]
        gc.collect()
        gc.freeze()  # a collection would look at every object of the libraries and stop all requests meanwhile
        if not self.should_exit:
            self._when_ready(self.address)

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:  # every second
            self.connections.close_expired()
        stop: bool = await super().on_tick(counter)
        return stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.is_stopping = True
        logs.write("stopping", {"requests": self._requests.used, "sockets": len(self._state.sockets)})
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


def _check_certificate(settings: WebSettings) -> None:
    """Raise a UserError if the files of TLS cannot be used."""
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            raise UserError(f"--tls-key {settings.tls_key} needs a certificate; give it with --tls-cert FILE")
        return
    for flag, file in (("--tls-cert", settings.tls_cert), ("--tls-key", settings.tls_key)):
        if file is not None and not file.is_file():
            raise UserError(f"{flag}: {file} is not a file; give a PEM file")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=lambda: "")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise UserError(
            f"--tls-cert {settings.tls_cert}: the certificate and its key cannot be used ({reason}); give a PEM file "
            "with the certificate, and the key without a password there or with --tls-key"
        ) from None


def _bind(settings: WebSettings) -> socket.socket:
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
    """Raise the limit on open files to `wanted` connections, as far as allowed; return the possible number."""
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
