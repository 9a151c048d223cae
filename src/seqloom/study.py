"""The contract of a study: a question, its measurements, and the table, the sentence and the picture they make."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

Settings = TypeVar("Settings")  # a frozen dataclass
Row = TypeVar("Row")  # a frozen dataclass whose str() is one line for the log


class Study(Generic[Settings, Row]):
    """A subclass names itself as its file in `studies/`, and writes what raises here.

    Its docstring's first line says what it shows. `full` and `quick` are its settings without and with
    --quick. `run` calls `before` once for each of `parts`, with what comes next, and yields a row as
    soon as it is known; the other functions make do with the rows there are.
    """

    registry: ClassVar[dict[str, type[Study[Any, Any]]]] = {}
    name: ClassVar[str]
    full: Settings
    quick: Settings

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name
        Study.registry[name] = cls

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = self.full if settings is None else settings

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

    def plot(self, rows: Sequence[Row], path: Path) -> None:
        raise NotImplementedError

    def command(self) -> str:
        """The command line that makes the same study; settings given in Python have none."""
        flags = {self.full: "", self.quick: " --quick"}  # of equal ones the last, so a study may have one size
        return f"seqloom study {self.name}{flags[self.settings]}" if self.settings in flags else ""

    def document(self, rows: Sequence[Row], finished: bool = True) -> dict[str, Any]:
        """Everything that a reader needs to believe the table, and to make it again."""
        from seqloom import doctor

        return {
            "study": self.name,
            "shows": shows(type(self)),
            "command": self.command(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": asdict(self.settings),  # type: ignore[call-overload]
            "versions": doctor.versions(),
            "hardware": doctor.hardware(),
            "finished": finished,
            "rows": [asdict(row) for row in rows],  # type: ignore[call-overload]
            "caption": self.caption(),
            "verdict": self.verdict(rows) if finished else "Interrupted: no verdict.",
        }


def known() -> list[str]:
    """The names that `find` takes."""
    for name in _files():
        importlib.import_module(f"seqloom.studies.{name}")
    return sorted(Study.registry)


def find(name: str) -> type[Study[Any, Any]]:
    """The study of this name; no other file is loaded for it."""
    if name in _files():
        importlib.import_module(f"seqloom.studies.{name}")
    if name not in Study.registry:
        near = get_close_matches(name.lower().replace("-", "_"), known(), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known())}"
        raise ValueError(f"there is no study {name!r}; {hint}")
    return Study.registry[name]


def _files() -> list[str]:
    folder = importlib.import_module("seqloom.studies").__path__  # by name: it stands above
    return [module.name for module in pkgutil.iter_modules(folder)]


def shows(kind: type[Study[Any, Any]]) -> str:
    """What a study shows, in a line."""
    return (kind.__doc__ or "").strip().partition("\n")[0]


def write(study: Study[Any, Any], rows: Sequence[Any], document: dict[str, Any], folder: Path) -> list[Path]:
    """NAME.json and, where there are rows, NAME.svg in this folder; each is there as a whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{study.name}.json"]
    with _whole(files[0]) as work:
        work.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    if rows:
        files.append(folder / f"{study.name}.svg")
        with _whole(files[1]) as work:
            study.plot(rows, work)
    return files


@contextmanager
def _whole(file: Path) -> Iterator[Path]:
    """A name to write to, which becomes the file's when all is written."""
    work = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        yield work
        os.replace(work, file)
    finally:
        work.unlink(missing_ok=True)
