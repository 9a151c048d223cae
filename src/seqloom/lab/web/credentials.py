"""Check the token of a request."""

from __future__ import annotations

import hmac

from seqloom.lab.web.gate import Headers, Scope
from seqloom.lab.web.problems import RequestError


def read_bearer(scope: Scope, headers: Headers) -> bytes:
    """Return the bearer token of a request; empty if it has none."""
    given = headers.get(b"authorization", b"")
    if scope["type"] == "websocket" and not given:  # a page cannot set headers of a WebSocket
        protocols = scope.get("subprotocols", [])
        is_token = protocols[:1] == ["bearer"] and len(protocols) > 1
        return protocols[1].encode("latin-1", "replace") if is_token else b""
    kind, _, token = given.partition(b" ")
    return token.strip() if kind.lower() == b"bearer" else b""


def is_same(given: bytes, token: str) -> bool:
    """Return whether a token is correct, in constant time."""
    return hmac.compare_digest(given, token.encode())


class BearerToken:
    """Check that requests have a bearer token.

    Args:
        token: The token; None if requests need none.
        open_paths: Paths that need no token.
    """

    def __init__(self, token: str | None, open_paths: tuple[str, ...]) -> None:
        self._token, self._open_paths = token, open_paths

    def check(self, scope: Scope, headers: Headers) -> None:
        """Raise a RequestError with status 401 if the token is missing or wrong."""
        if self._token is None or scope["path"] in self._open_paths:
            return
        if not is_same(read_bearer(scope, headers), self._token):
            raise RequestError(
                401, "this server needs a token: send Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
            )
