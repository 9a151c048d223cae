"""Serve the page and its answers to the person who started it, on this machine."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import threading
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.requests import Request, cookie_parser
from starlette.responses import Response
from starlette.routing import Route

from seqloom.core.errors import UserError
from seqloom.lab.explore.saved_page import FILES, read_static
from seqloom.lab.explore.service import QUESTIONS, Service
from seqloom.lab.web.bodies import read_object
from seqloom.lab.web.credentials import is_same, read_bearer
from seqloom.lab.web.gate import Gate, Headers, Policy, Scope, ServerState
from seqloom.lab.web.problems import RequestError, answer_problems, write_json
from seqloom.lab.web.server import Server
from seqloom.lab.web.settings import WebSettings

MAX_BODY = 8_000_000  # bytes of a question
MAX_SECONDS = 600.0  # seconds for the explanation of a long input
THREAD = "seqloom-question"
AT_ONCE = 8  # questions in threads; others wait
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SENTENCES = {
    404: "there is no such page; the page is at / and its questions are at /api/",
    405: "the address does not take this method; questions are sent with POST",
}

Answer = TypeVar("Answer")
TOKEN_BYTES = 24
MOST_FIELDS = 100  # fields of an address
ENTERS = "seqloom.enters"  # in the scope: whether the address has the token
SCRIPT = "location.replace('/' + location.hash)"  # so that a copied address does not contain the token
ENTRANCE = f"<!doctype html><meta charset=utf-8><title>seqloom explore</title><script>{SCRIPT}</script>"
ENTRANCE_POLICY = (
    f"default-src 'none'; script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
REFUSED = RequestError(401, "this page needs its token; open the address that seqloom explore printed in the terminal")


class PageRoutes:
    """The page's files, and its questions."""

    def __init__(self, service: Service, session: Session) -> None:
        self._service, self._session = service, session
        self._threads = asyncio.Semaphore(AT_ONCE)

    def list_routes(self) -> list[Route]:
        return [
            Route("/", self.show_page, methods=["GET"]),
            *(Route(f"/{name}", self.show_file, methods=["GET"]) for name in FILES),
            Route("/api/array", self.get_array, methods=["GET"]),
            Route("/api/{question}", self.answer, methods=["POST"]),
        ]

    async def show_page(self, request: Request) -> Response:
        if request.scope.get(ENTERS):
            headers = {"Set-Cookie": self._session.cookie}
            return _show(ENTRANCE.encode(), TYPES[".html"], ENTRANCE_POLICY, headers)
        return _show(read_static("index.html"), TYPES[".html"])

    async def show_file(self, request: Request) -> Response:
        name = request.url.path.removeprefix("/")
        return _show(read_static(name), TYPES[name[name.rfind(".") :]])

    async def get_array(self, request: Request) -> Response:
        query = request.query_params
        try:
            content = self._service.get_array(query.get("key", ""), query.get("name", ""))
        except UserError as error:
            raise RequestError(400, str(error)) from None
        return _show(content, "application/octet-stream")

    async def answer(self, request: Request) -> Response:
        question = request.path_params["question"]
        if question not in QUESTIONS:
            raise RequestError(404, f"there is no such question; there are {', '.join(QUESTIONS)}")
        document = await read_object(request, QUESTIONS[question])
        async with self._threads:
            try:
                answer = await _run_in_thread(lambda: self._service.answer(question, document))
            except (UserError, OSError) as error:  # such as data that are no longer there
                raise RequestError(400, str(error)) from None
        return write_json(answer)


async def _run_in_thread(call: Callable[[], Answer]) -> Answer:
    """Run a call in a thread that does not keep the process alive when the server stops, and return its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def finish(answer: Answer | None, error: BaseException | None) -> None:
        if future.done():  # its client has left
            return
        if error is None:
            future.set_result(answer)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        answer, error = None, None
        try:
            answer = call()
        except BaseException as raised:  # a panic of polars is not an Exception
            error = raised if isinstance(raised, Exception) else RuntimeError(type(raised).__name__)
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, answer, error)

    threading.Thread(target=run, name=THREAD, daemon=True).start()
    return await future


def has_running_questions() -> bool:
    """Return whether threads are still computing answers that nobody needs once the server has stopped."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def _show(content: bytes, kind: str, policy: str = POLICY, headers: dict[str, str] | None = None) -> Response:
    headers = (headers or {}) | {"Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
    return Response(content, media_type=kind, headers=headers)


def build_app(service: Service, session: Session, port: int = 0) -> Gate:
    """Build the ASGI application of a page."""
    app = Starlette(routes=PageRoutes(service, session).list_routes())
    app.router.redirect_slashes = False
    answer_problems(app, SENTENCES)
    settings = WebSettings(port=port, max_body=MAX_BODY, max_seconds=MAX_SECONDS, client_share=1.0, grace=0.0)
    return Gate(app, settings, Policy(session.check), ServerState())


def make_server(service: Service, session: Session, when_ready: Callable[[str], None], port: int = 0) -> Server:
    """Return a server for this machine alone; `serve_site()` runs it.

    Args:
        when_ready: Called with the address, without the token, once the server answers.
        port: The port; 0 chooses a free one.

    Raises:
        UserError: If the port is taken.
    """
    return Server(build_app(service, session, port), when_ready, finish_seconds=1)


class Session:
    """Check that requests come from the person who started the server.

    `/?token=TOKEN` sets a cookie, which later requests need. A script may send `Authorization: Bearer TOKEN` instead.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)  # of the address that is printed in the terminal
        self._name, self._value = f"seqloom-{secrets.token_hex(4)}", secrets.token_urlsafe(TOKEN_BYTES)
        self._once = ""

    @property
    def cookie(self) -> str:
        """The value of the header Set-Cookie. No script reads the cookie, and no other site makes a browser send it."""
        return f"{self._name}={self._value}; HttpOnly; SameSite=Strict; Path=/"

    def make_single_use_token(self) -> str:
        """Return a token that sets the cookie once; other users may see the arguments of a browser that is started."""
        self._once = secrets.token_urlsafe(TOKEN_BYTES)
        return self._once

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raise a RequestError with status 401 unless the request has the cookie, or the token."""
        given = _read_token(scope)
        if given is not None:
            is_once = bool(self._once) and is_same(given, self._once)
            if not is_once and not is_same(given, self.token):
                raise REFUSED
            self._once = "" if is_once else self._once
            scope[ENTERS] = True
            return
        cookies = cookie_parser(headers.get(b"cookie", b"").decode("latin-1"))
        has_cookie = is_same(cookies.get(self._name, "").encode(), self._value)
        if not has_cookie and not is_same(read_bearer(scope, headers), self.token):
            raise REFUSED


def _read_token(scope: Scope) -> bytes | None:
    """Return the token in the address of the page; None if there is none."""
    if scope["path"] != "/":
        return None
    try:
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=MOST_FIELDS)
    except ValueError:
        raise REFUSED from None
    return query["token"][0].encode() if "token" in query else None
