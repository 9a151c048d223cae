"""What a finished study shows, before anything is drawn: the contract between studies and `report/`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    title: str
    rows: list[dict[str, Any]]  # all with the same headings
    note: str = ""


@dataclass(frozen=True)
class Curve:
    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None  # an interval around y
    high: list[float] | None = None


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Dots:
    """One dot for every seed, group beside group."""

    title: str
    y_label: str
    groups: dict[str, list[float]]
    lines: dict[str, float] = field(default_factory=dict)  # a document's number, a trivial baseline
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Grid:
    """A confusion matrix or an alignment: a value for every row and column."""

    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    note: str = ""


@dataclass(frozen=True)
class Words:
    title: str
    paragraphs: list[str]


Block = Table | Chart | Dots | Grid | Words


@dataclass(frozen=True)
class Page:
    title: str
    verdict: str  # two sentences that a person can act on
    blocks: list[Block]
    facts: dict[str, Any]  # command, date, settings, data, hardware, versions
