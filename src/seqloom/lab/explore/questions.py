"""Schemas of the page's questions, by name."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

MAX_INPUT = 1_000_000  # characters of a typed input
MAX_CLAMPS = 32
MAX_UNITS = 100_000

Strict = ConfigDict(extra="forbid")
Name = Annotated[str, Field(strict=True, max_length=1000)]
Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Indices = Annotated[list[Index], Field(max_length=MAX_UNITS)]
Span = Annotated[list[Index], Field(min_length=2, max_length=2)]
Flag = Annotated[bool, Field(strict=True)]


@with_config(Strict)
class ClampQuestion(TypedDict):
    """A gate or a state to hold at a value; without units all of them, without steps at all steps."""

    layer: Name
    letter: Name
    value: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    units: NotRequired[Indices | None]
    steps: NotRequired[Span | None]


@with_config(Strict)
class AboutQuestion(TypedDict):
    """Ask which runs the page has."""


@with_config(Strict)
class RunQuestion(TypedDict):
    """Ask for the rows, or the learning curves, of a run."""

    run: Name


@with_config(Strict)
class ExplainQuestion(RunQuestion):
    """Ask what a model does with a row of the data, given by its index, or with a typed input."""

    row: NotRequired[Index | None]
    input: NotRequired[Annotated[str, Field(strict=True, max_length=MAX_INPUT)] | None]
    output: NotRequired[Index | None]
    step: NotRequired[Index | None]
    clamps: NotRequired[Annotated[list[ClampQuestion], Field(max_length=MAX_CLAMPS)] | None]
    uniform_attention: NotRequired[Flag | None]


@with_config(Strict)
class SimilarQuestion(ExplainQuestion):
    """Ask for rows in which the same units are active as in a span of an input."""

    span: Span
    units: NotRequired[Indices | None]


QUESTIONS: dict[str, TypeAdapter[Any]] = {
    "about": TypeAdapter(AboutQuestion),
    "rows": TypeAdapter(RunQuestion),
    "explain": TypeAdapter(ExplainQuestion),
    "similar": TypeAdapter(SimilarQuestion),
    "curves": TypeAdapter(RunQuestion),
}
