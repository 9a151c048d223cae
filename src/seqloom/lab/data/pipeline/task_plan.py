"""What is asked of a table, and the kind of task and the use of every column that answer it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Column
from seqloom.lab.kinds.forms import FORMS, Form, Kind

Layout = Literal["rows", "wide", "long", "table", "stream"]
MOST_REPEATS = 0.01  # share of the rows of a table that may repeat a time stamp: the hour when summer time ends


@dataclass(frozen=True)
class TaskPlan:
    """The kind of task and the use of every column.

    Layouts: "rows" (a row is an example), "wide" (a row is an example, its columns of numbers are the steps), "long"
    (a group of rows is an example), "table" (rows are the steps of one series), "stream" (one long text).
    """

    kind: Kind
    input: tuple[str, ...]
    target: tuple[str, ...]
    layout: Layout = "rows"
    group: str | None = None
    time: str | None = None
    split: str | None = None
    known: tuple[str, ...] = ()  # inputs of a forecast whose future is known
    attributes: tuple[str, ...] = ()  # numbers and names of a row that are read beside its sequence

    @property
    def form(self) -> Form:
        """What reading knows of the kind."""
        return FORMS[self.kind]

    @property
    def uses(self) -> dict[str, str]:
        """The use of each column by name: input, target, known, group, time or split."""
        uses = dict.fromkeys(self.target, "target")
        uses |= {name: "input" if name not in uses else "input, target" for name in self.input}
        uses |= dict.fromkeys(self.known, "input, known") | dict.fromkeys(self.attributes, "input")
        return uses | {v: k for k in ("group", "time", "split") if (v := getattr(self, k))}


@dataclass(frozen=True)
class TableRequest:
    """The columns and rows of a table, and the options with which it is read."""

    columns: Sequence[Column]
    source: Source
    options: Reading

    @property
    def place(self) -> str:
        """The name of the table in messages."""
        return self.source.parts[0].label

    @property
    def time(self) -> str | None:
        """The column of time stamps: the one in the options, or the first one."""
        names = (c.name for c in self.columns if c.role == "time" and c.name != self.options.group)
        return self.options.time or next(names, None)

    @property
    def split(self) -> str | None:
        """The column of splits: the one in the options, or the first one."""
        return self.options.split or next((c.name for c in self.columns if c.role == "split"), None)

    def ask(self, **options: object) -> TableRequest:
        """Return the request with other options."""
        return replace(self, options=self.options.model_copy(update=options))
