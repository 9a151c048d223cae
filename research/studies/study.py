"""The base class of studies: measurements, table, verdict and report."""

from __future__ import annotations

import math
import re
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

S = TypeVar("S")  # a frozen dataclass
R = TypeVar("R")  # a frozen dataclass whose str() is a line of the log

PROTOCOLS = ("fair", "paper")
FLAGS = ("conditions", "models", "seeds", "effort")  # settings with a command-line flag


class Study(Generic[S, R]):
    """An experiment with a table and a report; a subclass has the name of its file in `studies/`.

    A subclass overrides the methods that raise NotImplementedError. The first line of its docstring is the title.
    `full` and `quick` are its settings under the fair protocol, `paper` and `paper_quick` those of the source text, if
    it reports numbers. `run` calls `before` once for each of `parts` with a label, and yields rows as they are
    measured; all other methods accept incomplete rows. Results to keep between runs go to `folder`, if it is not None.
    """

    registry: ClassVar[dict[str, type[Study[Any, Any]]]] = {}
    name: ClassVar[str] = ""
    full: S
    quick: S
    paper: S | None = None
    paper_quick: S | None = None

    def __init_subclass__(cls, *, name: str = "") -> None:
        super().__init_subclass__()
        cls.name = name
        if name:  # classes without a name are bases
            Study.registry[name] = cls

    def __init__(
        self,
        settings: S | None = None,
        *,
        protocol: str = "fair",
        folder: Path | None = None,
        device: str = "cpu",
    ) -> None:
        self.settings = self.choose_settings(protocol) if settings is None else settings
        self.protocol, self.folder, self.device = protocol, folder, device
        self.replays = False  # whether `run` yields stored results alone and lists the others in `missing`
        self.missing: list[str] = []
        self.known_sizes: dict[tuple[str, str], int] = {}  # hidden sizes by model and condition, if they are known

    @classmethod
    def choose_settings(
        cls,
        protocol: str = "fair",
        quick: bool = False,
        models: Sequence[str] = (),
        seeds: int | None = None,
        effort: float | None = None,
        conditions: str = "",
    ) -> S:
        """Return the settings for these command-line flags.

        `conditions` is a name or several, separated by commas, or by semicolons if names contain commas.

        Raises:
            UserError: If a value is invalid or the study does not have the setting.
        """
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
        has = {field.name for field in fields(settings)}
        chosen = _choose_conditions(settings.conditions, conditions) if conditions and "conditions" in has else None
        flags: dict[str, object] = {"models": tuple(dict.fromkeys(models)) or None, "seeds": seeds, "effort": effort}
        flags["conditions"] = chosen or conditions or None
        for name in FLAGS:
            if flags[name] is not None and name not in has:
                raise UserError(f"study {cls.name!r} has no setting {name}; omit --{name}")
        return replace(settings, **{name: value for name, value in flags.items() if value is not None})

    @property
    def parts(self) -> int:
        raise NotImplementedError

    def run(self, before: Callable[[str], None]) -> Iterator[R]:
        raise NotImplementedError

    def table(self, rows: Sequence[R]) -> list[dict[str, Any]]:
        """Return table rows with the same keys."""
        raise NotImplementedError

    def caption(self) -> str:
        """Return how the numbers were measured."""
        raise NotImplementedError

    def verdict(self, rows: Sequence[R]) -> str:
        """Return the conclusion in one or two sentences."""
        raise NotImplementedError

    def blocks(self, rows: Sequence[R]) -> list[PageBlock]:
        """Return the blocks of the report below the verdict."""
        return [Table(self.name, self.table(rows), self.caption())]

    def command(self) -> str:
        """Return the command that repeats the study, or "" if the settings cannot be expressed as flags."""
        for quick in (False, True):
            default: Any = self.choose_settings(self.protocol, quick)
            mine = {name: getattr(self.settings, name) for name in FLAGS if hasattr(default, name)}
            if replace(default, **mine) != self.settings:
                continue
            words = ["seqloom study", self.name]
            words += ["--protocol paper"] if self.protocol == "paper" else []
            words += ["--quick"] if quick else []
            words += [f"--{n} {_flag(v)}" for n, v in mine.items() if v != getattr(default, n)]
            return " ".join(words + ([f"--device {self.device}"] if self.device != "cpu" else []))
        return ""

    def document(self, rows: Sequence[R], finished: bool = True) -> dict[str, Any]:
        """Return rows, table, verdict, settings, versions and hardware as a JSON document."""
        from seqloom.tools import doctor

        return {
            "study": self.name,
            "shows": describe(type(self)),
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
            "verdict": self._format_verdict(rows, finished),
        }

    def _format_verdict(self, rows: Sequence[R], finished: bool) -> str:
        if finished:
            return self.verdict(rows).strip()
        has_results = bool(rows) and bool(self.table(rows))  # tuning trials are not results
        return (
            f"Interrupted; preliminary results: {self.verdict(rows)}".strip()
            if has_results
            else "Interrupted before the first result."
        )

    def page(self, rows: Sequence[R], document: dict[str, Any]) -> Page:
        """Return the report of the rows; `document` is the result of `document(rows)`."""
        facts = ("command", "date", "protocol", "settings", "device", "hardware", "versions", "finished")
        title = f"{self.name}: {describe(type(self)).rstrip('.')}"
        blocks = self.blocks(rows) if rows else []
        return Page(title, document["verdict"], blocks, {name: document[name] for name in facts})


def _flag(value: object) -> str:
    """Return a setting as the command line takes it."""
    if not isinstance(value, tuple):
        return str(value)
    names = [str(getattr(one, "name", one)) for one in value]  # conditions have names
    text = (";" if any("," in name for name in names) else ",").join(names)
    return f'"{text}"' if re.search(r"[ ;]", text) else text


def _choose_conditions(conditions: Sequence[Any], wanted: str) -> tuple[Any, ...]:
    """Return the conditions with these names, in the order of the study."""
    names = [c.name for c in conditions]
    asked = [wanted] if wanted in names else re.split(";" if ";" in wanted else ",", wanted)
    for name in (one.strip() for one in asked):
        if name not in names:
            hint = suggest(name, names) or f"choose from {'; '.join(names)}"
            raise UserError(f"--conditions: the study has no condition {name!r}; {hint}")
    return tuple(c for c in conditions if c.name in {one.strip() for one in asked})


def list_studies() -> list[str]:
    """Return the names of all studies."""
    for name in _files():
        import_module(f"{__package__}.{name}")
    return sorted(Study.registry)


def find_study(name: str) -> type[Study[Any, Any]]:
    """Import and return the study with this name.

    Raises:
        UserError: If there is none.
    """
    if name in _files():
        import_module(f"{__package__}.{name}")
    if name not in Study.registry:
        hint = suggest(name, list_studies()) or f"choose one of {', '.join(list_studies())}"
        raise UserError(f"there is no study {name!r}; {hint}")
    return Study.registry[name]


def _files() -> list[str]:
    """List the modules of this folder: one study each, and this one."""
    return [module.name for module in iter_modules([str(Path(__file__).parent)]) if not module.ispkg]


def describe(kind: type[Study[Any, Any]]) -> str:
    """Return the title of a study: the first line of its docstring."""
    return (kind.__doc__ or "").strip().partition("\n")[0]
