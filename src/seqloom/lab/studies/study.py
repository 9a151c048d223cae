"""The contract of a study: a question, its measurements, and the page that they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar, Generic, TypeVar

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.report.page import Page, PageBlock, Table

Settings = TypeVar("Settings")  # a frozen dataclass
Row = TypeVar("Row")  # a frozen dataclass whose str() is one line for the log

PROTOCOLS = ("fair", "paper")
TOLD = ("models", "seeds", "effort")  # settings that have a flag of their own


class Study(Generic[Settings, Row]):
    """A subclass names itself as its file in `studies/`, and writes what raises here.

    Its docstring's first line says what it shows. `full` and `quick` are its settings under the fair
    protocol, `paper` and `paper_quick` those under which the document made its numbers, where it has
    some. `run` calls `before` once for each of `parts`, with what comes next, and yields a row as soon
    as it is known; the other functions make do with the rows there are. What is worth keeping between
    runs goes into `folder`, if there is one.
    """

    registry: ClassVar[dict[str, type[Study[Any, Any]]]] = {}
    name: ClassVar[str] = ""
    full: Settings
    quick: Settings
    paper: Settings | None = None
    paper_quick: Settings | None = None

    def __init_subclass__(cls, *, name: str = "") -> None:
        super().__init_subclass__()
        cls.name = name
        if name:  # one without is a base for others
            Study.registry[name] = cls

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        protocol: str = "fair",
        folder: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.settings = self.chosen(protocol) if settings is None else settings
        self.protocol, self.folder, self.device = protocol, folder, device

    @classmethod
    def chosen(
        cls,
        protocol: str = "fair",
        quick: bool = False,
        models: Sequence[str] = (),
        seeds: int | None = None,
        effort: float | None = None,
    ) -> Settings:
        """The settings that these flags ask for."""
        if protocol not in PROTOCOLS:
            raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        if protocol == "paper" and cls.paper is None:
            raise UserError(f"study {cls.name!r} has no protocol 'paper': no source reports it; use --protocol fair")
        if seeds is not None and seeds < 1:
            raise UserError(f"seeds must be at least 1, got {seeds}")
        if effort is not None and not 0 < effort < math.inf:
            raise UserError(f"effort must be above 0 and finite, got {effort}")
        as_printed = cls.paper_quick if quick and cls.paper_quick is not None else cls.paper
        settings: Any = as_printed if protocol == "paper" else cls.quick if quick else cls.full
        given = {"models": tuple(dict.fromkeys(models)) or None, "seeds": seeds, "effort": effort}
        has = {field.name for field in fields(settings)}
        for name in TOLD:
            if given[name] is not None and name not in has:
                raise UserError(f"study {cls.name!r} has no {name} to choose; leave --{name} out")
        return replace(settings, **{name: value for name, value in given.items() if value is not None})

    @property
    def parts(self) -> int:
        raise NotImplementedError

    def run(self, before: Callable[[str], None]) -> Iterator[Row]:
        raise NotImplementedError

    def table(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """As a person reads it: rows with the same headings."""
        raise NotImplementedError

    def caption(self) -> str:
        """How the numbers were made."""
        raise NotImplementedError

    def verdict(self, rows: Sequence[Row]) -> str:
        """What all rows together say, in a sentence or two."""
        raise NotImplementedError

    def blocks(self, rows: Sequence[Row]) -> list[PageBlock]:
        """What the page shows below the verdict."""
        return [Table(self.name, self.table(rows), self.caption())]

    def command(self) -> str:
        """The command line that makes the same study; settings given in Python have none."""
        for quick in (False, True):
            usual: Any = self.chosen(self.protocol, quick)
            mine = {name: getattr(self.settings, name) for name in TOLD if hasattr(usual, name)}
            if replace(usual, **mine) != self.settings:
                continue
            words = ["seqloom study", self.name]
            words += ["--protocol paper"] if self.protocol == "paper" else []
            words += ["--quick"] if quick else []
            words += [f"--{n} {_flag(v)}" for n, v in mine.items() if v != getattr(usual, n)]
            return " ".join(words + ([f"--device {self.device}"] if self.device != "cpu" else []))
        return ""

    def document(self, rows: Sequence[Row], finished: bool = True) -> dict[str, Any]:
        """Everything that a reader needs to believe the table, and to make it again."""
        from seqloom.tools import doctor

        return {
            "study": self.name,
            "shows": shows(type(self)),
            "protocol": self.protocol,
            "command": self.command(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": asdict(self.settings),  # type: ignore[call-overload]
            "device": self.device,
            "versions": doctor.versions(),
            "hardware": doctor.hardware(),
            "finished": finished,
            "rows": [asdict(row) for row in rows],  # type: ignore[call-overload]
            "table": self.table(rows),
            "caption": self.caption(),
            "verdict": self._said(rows, finished),
        }

    def _said(self, rows: Sequence[Row], finished: bool) -> str:
        if finished:
            return self.verdict(rows).strip()
        shown = bool(rows) and bool(self.table(rows))  # what served to tune is no result
        return f"Not finished; so far: {self.verdict(rows)}".strip() if shown else "Interrupted: no verdict."

    def page(self, rows: Sequence[Row], document: dict[str, Any]) -> Page:
        """The rows as something one would send to a colleague; `document` is theirs."""
        facts = ("command", "date", "protocol", "settings", "device", "hardware", "versions", "finished")
        title = f"{self.name}: {shows(type(self)).rstrip('.')}"
        blocks = self.blocks(rows) if rows else []
        return Page(title, document["verdict"], blocks, {name: document[name] for name in facts})


def _flag(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def known() -> list[str]:
    """The names that `find` takes."""
    for name in _files():
        import_module(f"{__package__}.{name}")
    return sorted(Study.registry)


def find(name: str) -> type[Study[Any, Any]]:
    """The study of this name; no other file is loaded for it."""
    if name in _files():
        import_module(f"{__package__}.{name}")
    if name not in Study.registry:
        hint = suggest(name, known()) or f"known are {', '.join(known())}"
        raise UserError(f"there is no study {name!r}; {hint}")
    return Study.registry[name]


def _files() -> list[str]:
    """List the modules of this folder: one study each, and this one."""
    return [module.name for module in iter_modules([str(Path(__file__).parent)]) if not module.ispkg]


def shows(kind: type[Study[Any, Any]]) -> str:
    """What a study shows, in a line."""
    return (kind.__doc__ or "").strip().partition("\n")[0]
