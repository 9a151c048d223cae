"""Read the bodies of requests and write those of responses."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NotRequired

from fastapi import Request, Response
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict

from seqloom.lab.serve.gate import too_large
from seqloom.lab.serve.problems import RequestError, explain_invalid

JSON = "application/json"
BODY_SECONDS = 10.0  # for a body to arrive after its headers
THROWN_AWAY = 16  # times the limit on bodies that is read of a body that is too large
THROWN_AWAY_SECONDS = 2.0  # for the rest of such a body
MOST_PROMPTS = 16
MOST_TEXTS = 16

RunName = Annotated[str, Field(strict=True, max_length=100)]
Flag = Annotated[bool, Field(strict=True)]
Strict = ConfigDict(extra="forbid")


@with_config(Strict)
class PredictBody(TypedDict):
    """What POST /v1/predict takes; the run checks the rows."""

    run: NotRequired[RunName]
    rows: list[Any]
    probabilities: NotRequired[Flag]


@with_config(Strict)
class GenerateBody(TypedDict):
    """What POST /v1/generate takes."""

    run: NotRequired[RunName]
    prompts: NotRequired[Annotated[list[Annotated[str, Field(strict=True)]], Field(max_length=MOST_PROMPTS)]]
    max_tokens: NotRequired[Annotated[int, Field(strict=True, ge=1)]]
    count: NotRequired[Annotated[int, Field(strict=True, ge=1, le=MOST_TEXTS)]]
    temperature: NotRequired[Annotated[float, Field(strict=True, gt=0, le=100, allow_inf_nan=False)]]
    top_k: NotRequired[Annotated[int, Field(strict=True, ge=0, lt=2**31)]]
    top_p: NotRequired[Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]]
    seed: NotRequired[Annotated[int, Field(strict=True, ge=0, lt=2**63)]]


@with_config(Strict)
class StartBody(TypedDict):
    """What POST /v1/stream takes."""

    run: NotRequired[RunName]


@with_config(Strict)
class StepsBody(TypedDict):
    """What POST /v1/stream/{token}/steps takes; the run checks the steps."""

    run: NotRequired[RunName]
    steps: list[Any]
    probabilities: NotRequired[Flag]


PREDICT, GENERATE, START, STEPS = (TypeAdapter(kind) for kind in (PredictBody, GenerateBody, StartBody, StepsBody))


async def read_object(request: Request, kind: TypeAdapter[Any], limit: int) -> dict[str, Any]:
    """Return the body of a request.

    Args:
        request: The request.
        kind: What the body must be.
        limit: Most bytes.

    Raises:
        RequestError: 400 if it is not JSON, 408 if it does not arrive in time, 413 if it is too large, 415 if the
            request does not say that it is JSON, 422 if a field is wrong.
    """
    content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content != JSON:
        raise RequestError(415, "the body must be JSON; send the header Content-Type: application/json")
    return check_object(parse_json(await read_body(request, limit)), kind)


async def read_body(request: Request, limit: int) -> bytes:
    """Return the bytes of a body; 408 if the client is too slow, 413 if there are too many.

    A body that is too large is read to its end, within bounds, and thrown away: a client that is still sending would
    find its connection reset and never see the answer.
    """
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > THROWN_AWAY * limit:
        raise too_large(limit)
    body, size = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_SECONDS) as timer:
            async for piece in request.stream():
                size += len(piece)
                if size <= limit:
                    body += piece
                elif size > THROWN_AWAY * limit:
                    break
                elif body:
                    body.clear()
                    timer.reschedule(asyncio.get_running_loop().time() + THROWN_AWAY_SECONDS)
    except TimeoutError:
        if size > limit:
            raise too_large(limit) from None
        raise RequestError(408, "the body did not arrive in time; send it faster", {"Connection": "close"}) from None
    if size > limit:
        raise too_large(limit)
    return bytes(body)


def parse_json(body: bytes | str) -> Any:  # noqa: ANN401  # any JSON
    """Return a JSON document; 400 if it is malformed, too deep, not UTF-8 or has NaN."""
    try:
        return from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise RequestError(400, f"the body is not valid JSON: {error}") from None


def check_object(document: Any, kind: TypeAdapter[Any]) -> dict[str, Any]:  # noqa: ANN401  # any JSON
    """Return a document that has the fields of a body; 422 otherwise."""
    if not isinstance(document, dict):
        raise RequestError(422, "the body must be a JSON object")
    try:
        checked: dict[str, Any] = kind.validate_python(document)
    except ValidationError as error:
        raise explain_invalid(error) from None
    return checked


def write_json(document: object, status: int = 200) -> Response:
    """Return a response with a JSON document."""
    return Response(to_json(document), status, media_type=JSON)
