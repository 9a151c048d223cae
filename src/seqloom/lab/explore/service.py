"""Answer a page's questions about runs as JSON, independently of the transport."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, Any, NotRequired

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import TypedDict

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.lab.data.task import Features, Tokens
from seqloom.lab.explore.explanation import Request, RowExplanation, explain, pack_array
from seqloom.lab.explore.inside import Array
from seqloom.lab.explore.rows import HeldOutRow, find_similar, list_rows, read_row_states
from seqloom.lab.explore.subject import LabelledInput, Subject, open_subject
from seqloom.lab.training.run import Run

KEPT = 12  # explanations whose arrays can still be asked for
CURVE_POINTS = 500
MAX_INPUT = 1_000_000  # characters of a typed input
MAX_CLAMPS = 32
MAX_UNITS = 100_000

Strict = ConfigDict(extra="forbid")
Name = Annotated[str, Field(strict=True, max_length=1000)]
Index = Annotated[int, Field(strict=True, ge=0, lt=2**31)]
Indices = Annotated[list[Index], Field(max_length=MAX_UNITS)]
Span = Annotated[list[Index], Field(min_length=2, max_length=2)]
Flag = Annotated[bool, Field(strict=True)]


class RunEntry:
    """One run of a page: its model, rows and states, each loaded on first use."""

    def __init__(self, name: str, run: Run | None = None, subject: Subject | None = None, problem: str = "") -> None:
        self.name, self.run, self.problem = name, run, problem
        self._subject = subject
        self._lock, self._rows_lock = threading.RLock(), threading.RLock()  # rows must not delay explanations

    @property
    def subject(self) -> Subject:
        with self._lock:
            if self._subject is None:
                if self.run is None:
                    raise UserError(self.problem)
                self._subject = open_subject(self.run)
            return self._subject

    @cached_property
    def rows(self) -> list[HeldOutRow]:
        with self._rows_lock:
            return list_rows(self.subject)

    @cached_property
    def states(self) -> list[Array]:
        with self._rows_lock:
            return read_row_states(self.subject, self.rows)

    def describe(self) -> dict[str, Any]:
        """Return what the page needs to know about the run; a problem is a sentence."""
        if self.run is None and self._subject is None:
            return {"name": self.name, "problem": self.problem}
        if self.run is None:
            facts = {
                "kind": self.subject.kind.name,
                "data": "",
                "model": type(self.subject.network).__name__,
                "unit": "",
            }
            return {"name": self.name, "problem": "", "features": list(self.subject.features)} | facts
        try:
            task = self.run.task
        except (UserError, OSError) as error:
            return {"name": self.name, "problem": str(error)}
        return {
            "name": self.name,
            "problem": "",
            "kind": task.kind,
            "data": task.name,
            "model": self.run.settings.model,
            "unit": task.input.unit if isinstance(task.input, Tokens) else "",
            "features": list(task.input.names) if isinstance(task.input, Features) else [],
        }


class Service:
    """Answer a page's questions about some runs."""

    def __init__(self, entries: Sequence[RunEntry]) -> None:
        self.entries = {entry.name: entry for entry in entries}
        self._kept: OrderedDict[str, tuple[LabelledInput, RowExplanation]] = OrderedDict()
        self._count = 0
        self._lock = threading.Lock()

    def answer(self, question: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a question by its name; `QUESTIONS` has what the document must be.

        Raises:
            UserError: If the document does not fit the run.
        """
        questions = {
            "about": self._about,
            "rows": self._rows,
            "explain": self._explain,
            "similar": self._similar,
            "curves": self._curves,
        }
        return questions[question](document)

    def warm_up(self) -> None:
        """Load the first model and the requirements of its first explanation in advance."""
        import sklearn.decomposition  # noqa: F401  # takes two seconds

        for entry in list(self.entries.values())[:1]:
            with suppress(UserError, OSError):  # the page will say it
                entry.subject  # noqa: B018

    def get_array(self, key: str, name: str) -> bytes:
        """Return an array of an explanation, packed."""
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or name not in kept[1].arrays:
            raise UserError("this view is no longer in memory; ask for it again")
        return pack_array(kept[1].arrays[name])

    def _entry(self, document: Mapping[str, Any]) -> RunEntry:
        name = document["run"]
        if name not in self.entries:
            raise UserError(f"there is no run {name!r} in this page; it has {', '.join(self.entries)}")
        return self.entries[name]

    def _about(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"version": __version__, "runs": [entry.describe() for entry in self.entries.values()]}

    def _rows(self, document: Mapping[str, Any]) -> dict[str, Any]:
        rows = self._entry(document).rows
        fields = ("text", "truth", "prediction", "loss", "confidence")
        return {"rows": [{"row": i} | {f: getattr(row, f) for f in fields} for i, row in enumerate(rows)]}

    def _read(self, entry: RunEntry, document: Mapping[str, Any]) -> LabelledInput:
        if (number := document.get("row")) is not None:
            if number >= len(entry.rows):
                raise UserError(f"there is no row {number!r}; the page lists {len(entry.rows)} rows")
            return entry.subject.label(entry.rows[number].batch)
        text = document.get("input")
        if text is None:
            raise UserError("type an input, or choose an example")
        return entry.subject.read(text)

    def _explain(self, document: Mapping[str, Any]) -> dict[str, Any]:
        entry = self._entry(document)
        example = self._read(entry, document)
        explanation = explain(entry.subject, example, Request.parse(document))
        with self._lock:
            self._count += 1
            key = str(self._count)
            self._kept[key] = example, explanation
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return explanation.document | {"key": key}

    def _similar(self, document: Mapping[str, Any]) -> dict[str, Any]:
        entry = self._entry(document)
        span, units = document["span"], document.get("units") or []
        example = self._read(entry, document)
        chosen, matches = find_similar(
            entry.subject, example, entry.rows, entry.states, (span[0], span[1]), tuple(units)
        )
        return {"units": chosen, "matches": [asdict(m) | {"truth": entry.rows[m.row].truth} for m in matches]}

    def _curves(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Return the learning curves of a run, even while it trains."""
        run = self._entry(document).run
        if run is None:
            return {"lines": [], "finished": None}
        metrics = run.metrics()
        names = sorted(
            {name for line in metrics for name, v in line.items() if isinstance(v, float)} - {"lr", "seconds"}
        )
        lines = []
        for name in names:
            for split in sorted({str(line.get("split", "train")) for line in metrics if name in line}):
                some = [line for line in metrics if name in line and str(line.get("split", "train")) == split]
                some = some[:: max(1, len(some) // CURVE_POINTS)]
                steps, values = [line["step"] for line in some], [line[name] for line in some]
                lines.append({"name": name, "split": split, "steps": steps, "values": values})
        return {"lines": lines, "finished": run.finished}


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
