"""Errors of a request: a status and one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from seqloom.core.plurals import shorten

LONGEST_SENTENCE = 300  # characters; the rest of a message would repeat the user's data


class RequestError(Exception):
    """A problem with a request: a status, and what is wrong and what to do; the client gets {"error": sentence}."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.headers = status, headers or {}
        self.sentence = shorten(" ".join(sentence.split()), LONGEST_SENTENCE)
        super().__init__(self.sentence)

    @property
    def document(self) -> dict[str, Any]:
        """The body of the response."""
        return {"error": self.sentence}

    @property
    def response(self) -> Response:
        """The answer to the request."""
        return write_json(self.document, self.status, self.headers)


BUG = RequestError(500, "internal error of the server; its log has the place")

# What a value should be, by pydantic's type of error; others have pydantic's message.
EXPECTED = {
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "string_type": "must be a text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "finite_number": "must be a finite number; give null for a missing value",
    "missing": "is missing",
    "extra_forbidden": "is not a field",
}
TYPE_NAMES = ("str", "float", "bool", "int")  # alternatives of a union in pydantic's locations


def explain_invalid(error: ValidationError, prefix: str = "") -> RequestError:
    """Return the problem of a value that pydantic refused: 413 if it is too long, otherwise 422.

    Args:
        error: What pydantic raised.
        prefix: The location of the value, such as "rows". The sentence names the location, never the value.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    kind, reason, context = str(first["type"]), str(first["msg"]), first.get("ctx") or {}
    place = _name_place(prefix, first["loc"])
    if kind in ("too_long", "string_too_long"):
        unit = "characters" if kind == "string_too_long" else "items"
        return RequestError(
            413, f"{place} is too long; this server reads at most {context['max_length']:,} {unit} there"
        )
    return RequestError(422, f"{place} {EXPECTED.get(kind) or 'is not valid: ' + reason}")


def answer_problems(app: Starlette, sentences: Mapping[int, str]) -> None:
    """Make an application answer problems, and errors of its framework, with {"error": sentence}.

    Args:
        sentences: What to say for a status of the framework, such as 404.
    """

    async def answer_problem(_: Request, problem: Any) -> Response:  # noqa: ANN401  # as the framework passes it
        return problem.response

    async def answer_http_error(_: Request, error: Any) -> Response:  # noqa: ANN401  # as the framework passes it
        document = {"error": sentences.get(error.status_code, str(error.detail))}
        return write_json(document, error.status_code, error.headers or {})

    async def answer_bug(_: Request, error: Exception) -> Response:
        return BUG.response

    app.add_exception_handler(RequestError, answer_problem)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(Exception, answer_bug)


def write_json(document: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a JSON document."""
    content = to_json(document, inf_nan_mode="null")  # JSON has neither NaN nor infinity
    return Response(content, status, dict(headers or {}), media_type="application/json")


def _name_place(prefix: str, location: tuple[int | str, ...]) -> str:
    """Return where a value is, such as "rows[3].text", without the names of alternative types."""
    text = prefix
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part not in TYPE_NAMES:
            text += f".{part}" if text else part
    return text or "the body"
