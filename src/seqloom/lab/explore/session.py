"""The token in the address of the page, and the cookie that follows it."""

from __future__ import annotations

import base64
import hashlib
import secrets
from urllib.parse import parse_qs

from starlette.requests import cookie_parser

from seqloom.lab.web.credentials import is_same, read_bearer
from seqloom.lab.web.gate import Headers, Scope
from seqloom.lab.web.problems import RequestError

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


class Session:
    """Check that requests come from the person who started the server.

    `/?token=TOKEN` sets a cookie, which later requests need. A script may send `Authorization: Bearer TOKEN` instead.

    Attributes:
        token: The token of the address, which is printed in the terminal.
    """

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
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
