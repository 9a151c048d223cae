"""The content of a report before it is drawn: what studies and comparisons pass to `report`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """A table; all rows have the same keys, which are the headings."""

    title: str
    rows: list[dict[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One line of a chart, with an optional interval around y, and a narrower one within it."""

    name: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    inner_low: list[float] | None = None
    inner_high: list[float] | None = None


@dataclass(frozen=True)
class Chart:
    """Curves over a shared x axis. With `x_names`, such as dates, x counts them from 0."""

    title: str
    x_label: str
    y_label: str
    curves: list[Curve]
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    x_names: list[str] = field(default_factory=list)
    split: float | None = None  # the x at which a forecast begins


@dataclass(frozen=True)
class Dots:
    """One dot per seed, in groups side by side; without `by_seed`, the note says what a dot is."""

    title: str
    y_label: str
    groups: dict[str, list[float]]
    lines: dict[str, float] = field(default_factory=dict)  # reference lines: a published number, a trivial baseline
    log_y: bool = False
    note: str = ""
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)  # 95% intervals of the means, by group
    by_seed: bool = True


@dataclass(frozen=True)
class Grid:
    """A matrix as shades: a confusion matrix or an alignment. With `by_row`, values are counts, shown as shares."""

    title: str
    rows: list[str]
    columns: list[str]
    values: list[list[float]]
    note: str = ""
    by_row: bool = False


@dataclass(frozen=True)
class Gallery:
    """Small pictures side by side, each with its title: rows of the data, drawn."""

    title: str
    pictures: list[Chart | Grid]
    note: str = ""


@dataclass(frozen=True)
class Words:
    """Paragraphs of text."""

    title: str
    paragraphs: list[str]


PageBlock = Table | Chart | Dots | Grid | Gallery | Words


@dataclass(frozen=True)
class Page:
    """A whole report."""

    title: str
    verdict: str  # one or two sentences: the conclusion
    blocks: list[PageBlock]
    facts: dict[str, Any]  # command, date, settings, data, hardware, versions
