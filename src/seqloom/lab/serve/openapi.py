"""The OpenAPI document of the routes, with the columns and examples of the served runs."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.serve import bodies
from seqloom.lab.serve.model_version import ModelVersion
from seqloom.lab.serve.runs import Runs
from seqloom.lab.serve.settings import ServeSettings

Document = dict[str, Any]

ERROR: Document = {
    "type": "object",
    "properties": {"error": {"type": "string", "description": "What is wrong, in one sentence."}},
    "required": ["error"],
}
PROBLEMS = {
    "400": "The body is not JSON.",
    "401": "The token is missing or wrong.",
    "403": "The request comes from a page of another origin, or the token of a stream belongs to another run.",
    "404": "There is no such run, stream or route.",
    "405": "The route does not take this method.",
    "408": "The body did not arrive in time.",
    "409": "The run cannot do this.",
    "413": "The request is larger than a limit of the server.",
    "415": "The body is not declared as JSON.",
    "422": "A field, row or step is wrong.",
    "429": "There are too many streams.",
    "503": "The server is stopping, has too many requests, or the answer took too long.",
}
RESULT: Document = {
    "type": "object",
    "description": "The prediction of a row, as `seqloom predict` writes it, or its error.",
}


def build_document(app: FastAPI, runs: Runs, settings: ServeSettings, needs_token: bool) -> Document:
    """Return the OpenAPI document for the checkpoints that are served now.

    Args:
        needs_token: Whether requests need the bearer token.
    """
    document: Document = get_openapi(
        title=app.title,
        version=app.version,
        routes=app.routes,
        description='Predictions, streams and texts of trained sequence models. Errors are {"error": sentence}.',
    )
    document.setdefault("components", {})["schemas"] = {"Error": ERROR}
    if needs_token:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    versions = [run.version for run in runs.by_name.values()]
    requests = {
        "/v1/predict": _describe_rows(versions, settings, of_steps=False),
        "/v1/stream/{token}/steps": _describe_rows(versions, settings, of_steps=True),
        "/v1/generate": _describe_generate(versions, settings),
        "/v1/stream": _describe_start(versions),
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _complete(operation, requests.get(path))
    return document


def _complete(operation: Document, request: Document | None) -> None:
    """Add the body, the answer and the problems of one operation."""
    problems = {
        status: {
            "description": text,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, text in PROBLEMS.items()
    }
    name = operation["operationId"]
    success = "201" if name == "start" else "200"
    kind = {"metrics": "text/plain", "events": "text/event-stream"}.get(name, "application/json")
    schema: Document = {"type": "string"} if kind != "application/json" else {"type": "object"}
    if request is not None and name != "start":  # all other routes with a body answer with results
        results = {"type": "array", "items": RESULT}
        schema = {"type": "object", "properties": {"run": {"type": "string"}, "results": results}}
        schema["required"] = ["run", "results"]
    operation["responses"] = {success: {"description": "The answer.", "content": {kind: {"schema": schema}}}} | problems
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": request}}


def _describe_rows(versions: list[ModelVersion], settings: ServeSettings, of_steps: bool) -> Document:
    """Describe the bodies with rows, or with steps: one alternative for each run that takes them."""
    field = "steps" if of_steps else "rows"
    alternatives, examples = [], {}
    for version in versions:
        if (version.stepper is None) if of_steps else kind_of(version.run.task).continues_text:
            continue
        example = version.format.step_example if of_steps else version.format.example
        properties = {
            "run": {"const": version.name, "type": "string"},
            field: version.format.build_schema(of_steps),
            "probabilities": {"type": "boolean", "default": False},
        }
        required = [field] if len(versions) == 1 or of_steps else ["run", field]
        alternatives.append(_make_object(properties, required))
        examples[version.name] = {"value": {"run": version.name, field: [example]}}
    if not alternatives:
        return {"schema": _make_object({field: {"type": "array", "maxItems": 0}}, [field])}
    return {"schema": alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}, "examples": examples}


def _describe_generate(versions: list[ModelVersion], settings: ServeSettings) -> Document:
    schema = bodies.GENERATE.json_schema()
    names = [version.name for version in versions if kind_of(version.run.task).continues_text]
    properties = schema["properties"]
    properties["max_tokens"]["maximum"] = settings.max_tokens
    properties["prompts"]["items"]["maxLength"] = settings.max_steps
    if names:
        properties["run"] = {"enum": names, "type": "string"}
    if len(versions) > 1:
        schema["required"] = ["run"]
    examples = {name: {"value": {"run": name, "prompts": [""], "max_tokens": 20, "seed": 1}} for name in names}
    return {"schema": schema, "examples": examples} if examples else {"schema": schema}


def _describe_start(versions: list[ModelVersion]) -> Document:
    names = [version.name for version in versions if version.stepper is not None]
    run = {"enum": names, "type": "string"} if names else {"type": "string"}
    schema = _make_object({"run": run}, ["run"] if len(versions) > 1 else [])
    return {"schema": schema, "examples": {name: {"value": {"run": name}} for name in names}}


def _make_object(properties: Document, required: list[str]) -> Document:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": required} if required else {})
