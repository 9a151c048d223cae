"""Schemas of the bodies of requests."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

MOST_PROMPTS = 16
MOST_TEXTS = 16

RunName = Annotated[str, Field(strict=True, max_length=100)]
Flag = Annotated[bool, Field(strict=True)]
Strict = ConfigDict(extra="forbid")


@with_config(Strict)
class PredictBody(TypedDict):
    """The body of POST /v1/predict; the run checks the rows."""

    run: NotRequired[RunName]
    rows: list[Any]
    probabilities: NotRequired[Flag]


@with_config(Strict)
class GenerateBody(TypedDict):
    """The body of POST /v1/generate."""

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
    """The body of POST /v1/stream."""

    run: NotRequired[RunName]


@with_config(Strict)
class StepsBody(TypedDict):
    """The body of POST /v1/stream/{token}/steps; the run checks the steps."""

    run: NotRequired[RunName]
    steps: list[Any]
    probabilities: NotRequired[Flag]


PREDICT, GENERATE, START, STEPS = (TypeAdapter(kind) for kind in (PredictBody, GenerateBody, StartBody, StepsBody))
