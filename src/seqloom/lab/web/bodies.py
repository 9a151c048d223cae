"""Receive, read and check the bodies of requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from seqloom.lab.web.clients import Shares
from seqloom.lab.web.problems import RequestError, explain_invalid

JSON = "application/json"
BODY_SECONDS = 10.0  # seconds for a body to arrive after its headers
THROWN_AWAY = 16  # how many times the limit is read of a body that is too large
THROWN_AWAY_SECONDS = 2.0  # seconds for the rest of such a body
CLOSE = {"Connection": "close"}  # the rest of the body will not be read


class ClientLeftError(Exception):
    """The client closed its connection before it received its answer."""


async def receive_body(
    receive: Any,  # noqa: ANN401  # of ASGI
    length: str,
    limit: int,
    receiving: Shares,
    client: str,
    find_wait: Callable[[str, int, int], float] = lambda *_: 0.0,
) -> bytes:
    """Return the bytes of a body.

    A body that is refused is read to its end, within bounds, and discarded: otherwise a client that is still sending
    would see its connection reset and never receive the answer.

    Args:
        length: The header Content-Length.
        receiving: Counts the bytes of bodies that are being received.
        client: Who sends the body.
        find_wait: Returns how many seconds to wait before more is received; see `Lane`.

    Raises:
        RequestError: 408 if the body does not arrive in time, 413 if it is too large, 429 or 503 if too many bytes are
            being received.
        ClientLeftError: If the client closes its connection.
    """
    if length.isdigit() and int(length[:20]) > THROWN_AWAY * limit:
        raise too_large(limit)
    body, size, taken = bytearray(), 0, 0
    problem: RequestError | None = None
    try:
        async with asyncio.timeout(BODY_SECONDS) as timer:
            more = True
            while more and size <= THROWN_AWAY * limit:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeftError
                piece, more = message.get("body", b""), message.get("more_body", False)
                size += len(piece)
                if problem is not None:
                    continue
                problem = too_large(limit) if size > limit else _find_excess(receiving, client, len(piece))
                if problem is not None:
                    body.clear()
                    receiving.give_back(client, taken)
                    taken = 0
                    timer.reschedule(asyncio.get_running_loop().time() + THROWN_AWAY_SECONDS)
                    continue
                receiving.take(client, len(piece))
                taken += len(piece)
                body += piece
                if more and (wait := find_wait(client, len(piece), size)):
                    timer.reschedule((timer.when() or 0.0) + wait)
                    await asyncio.sleep(wait)
    except TimeoutError:
        problem = problem or RequestError(408, "the body did not arrive in time; send it faster", CLOSE)
    finally:
        receiving.give_back(client, taken)
    if problem is not None:
        raise problem
    return bytes(body)


def _find_excess(receiving: Shares, client: str, size: int) -> RequestError | None:
    if receiving.exceeds_client(client, size):
        sentence = f"this server receives at most {receiving.of_one:,} bytes of bodies from a client at a time"
        return RequestError(429, f"{sentence}; send fewer requests at a time", CLOSE | {"Retry-After": "1"})
    if receiving.exceeds_total(size):
        sentence = f"this server receives at most {receiving.total:,} bytes of bodies at a time"
        return RequestError(503, f"{sentence}; try again", CLOSE | {"Retry-After": "1"})
    return None


def too_large(limit: int) -> RequestError:
    """Return the problem of a body over the limit."""
    return RequestError(413, f"the body is larger than {limit:,} bytes, the limit of this server", CLOSE)


async def read_object(request: Request, kind: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the body of a request.

    Raises:
        RequestError: 400 if it is not JSON, 415 if the request does not say that it is JSON, 422 if a field is wrong.
    """
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != JSON:
        raise RequestError(415, "the body must be JSON; send the header Content-Type: application/json")
    document = parse_json(await request.body())
    if not isinstance(document, dict):
        raise RequestError(422, "the body must be a JSON object")
    try:
        checked: dict[str, Any] = kind.validate_python(document)
    except ValidationError as error:
        raise explain_invalid(error) from None
    return checked


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """Return a JSON document; 400 if it is malformed, too deep, not UTF-8 or has NaN."""
    try:
        return from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None
