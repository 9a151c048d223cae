"""Serve the page and its answers on this machine."""

from __future__ import annotations

import json
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from seqloom.core.errors import UserError
from seqloom.lab.explore.service import Service

HOST = "127.0.0.1"  # only this machine can connect
LOCAL_NAMES = ("127.0.0.1", "localhost", "[::1]")
MAX_BODY = 8_000_000  # bytes of a question
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def make_server(service: Service, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for this machine alone; call `serve_forever()` to run it.

    Args:
        service: Answers the page's questions.
        port: The port; 0 chooses a free one, which `server_port` then has.

    Raises:
        UserError: If the port is taken.
    """

    class Handler(_Handler):
        pass

    Handler.service = service
    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise UserError(f"--port {port}: {error.strerror}; choose another port, or 0 for a free one") from None
    server.daemon_threads = True
    return server


def read_static(name: str) -> bytes:
    """Return a file of the built page.

    Raises:
        FileNotFoundError: If there is no such file.
    """
    folder = resources.files("seqloom.lab.explore") / "static"
    if name not in {entry.name for entry in folder.iterdir()}:
        raise FileNotFoundError(name)
    return (folder / name).read_bytes()


class _Handler(BaseHTTPRequestHandler):
    service: Service
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if not self._is_local():
            return
        if parts.path == "/api/array":
            query = parse_qs(parts.query)
            self._respond(lambda: self.service.get_array(query.get("key", [""])[0], query.get("name", [""])[0]))
            return
        name = parts.path.lstrip("/") or "index.html"
        try:
            body = read_static(name)
        except FileNotFoundError:
            self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
            return
        self._send(HTTPStatus.OK, body, TYPES.get(name[name.rfind(".") :], "application/octet-stream"))

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        if not self._is_local():
            return
        if length > MAX_BODY:
            self.close_connection = True
            self._send_json(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, {"error": "the input is too large for the page"})
            return
        body = self.rfile.read(length)
        if not self.headers.get("Content-Type", "").startswith("application/json"):
            self._send_json(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, {"error": "questions are JSON"})
            return

        def answer() -> dict[str, Any]:
            try:
                document = json.loads(body or b"{}")
            except ValueError:
                raise UserError("the question is not JSON") from None
            if not isinstance(document, dict):
                raise UserError("the question must be a JSON object")
            return self.service.answer(parts.path.removeprefix("/api/"), document)

        self._respond(answer)

    def _is_local(self) -> bool:
        """Refuse requests that another site makes through the user's browser."""
        host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host") or ""
        origin = self.headers.get("Origin")
        expected = f"http://{self.headers.get('Host')}"
        if host in LOCAL_NAMES and origin in (None, expected):
            return True
        self.close_connection = True
        self._send(HTTPStatus.FORBIDDEN, b"this page answers its own machine only", "text/plain")
        return False

    def _respond(self, compute: Any) -> None:  # noqa: ANN401  # a function without arguments
        try:
            result = compute()
        except (UserError, OSError) as error:
            self._send_json(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        except Exception as error:  # the page shows a sentence, the terminal the traceback
            traceback.print_exc()
            text = f"internal error ({type(error).__name__}: {error}); the terminal has the traceback, please report it"
            self._send_json(HTTPStatus.INTERNAL_SERVER_ERROR, {"error": text})
        else:
            if isinstance(result, bytes):
                self._send(HTTPStatus.OK, result, "application/octet-stream")
            else:
                self._send_json(HTTPStatus.OK, result)

    def _send_json(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        try:
            self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError):  # the page asked for something newer
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal quiet."""
