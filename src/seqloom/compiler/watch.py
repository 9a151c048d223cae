"""Watch which source files a step runs and which global names it reads: a plan holds only while they stay the same."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from types import FrameType, ModuleType
from typing import TypeVar

from seqloom.compiler.fingerprint import freeze, write
from seqloom.compiler.nodes import UnsupportedError, is_internal

Result = TypeVar("Result")
_PYTHON = sysconfig.get_path("stdlib")
_MISSING = object()


@dataclass(frozen=True, eq=False)
class Global:
    """A global name that a step reads, with its value when the step was traced."""

    names: Mapping[str, object]  # of a module
    name: str
    value: object = field(repr=False)

    def is_same(self) -> bool:
        """Return whether the name still has that value."""
        return bool(freeze(self.names.get(self.name, _MISSING)) == self.value)


@dataclass(frozen=True)
class Seen:
    """What the user's code ran and read; torch's, Python's and the package's own are left out."""

    files: frozenset[str] = frozenset()
    globals: tuple[Global, ...] = ()

    def write_globals(self) -> dict[str, dict[str, str]] | None:
        """Return the values of the global names by module, as text; None if one cannot be written as text."""
        texts: dict[str, dict[str, str]] = {}
        for g in self.globals:
            module = str(g.names.get("__name__"))
            text = write(g.names.get(g.name))
            if text is None or getattr(sys.modules.get(module), "__dict__", None) is not g.names:
                return None
            texts.setdefault(module, {})[g.name] = text
        return texts


def read_globals(texts: Mapping[str, Mapping[str, str]]) -> tuple[Global, ...] | None:
    """Return the global names that `Seen.write_globals` wrote; None if one has another value now."""
    result = []
    for module, values in texts.items():
        names = getattr(sys.modules.get(module), "__dict__", {})
        for name, text in values.items():
            if name not in names or write(names[name]) != text:
                return None
            result.append(Global(names, name, freeze(names[name])))
    return tuple(result)


def watch(function: Callable[[], Result]) -> tuple[Result, Seen]:
    """Call a function and report what it ran and read.

    It runs in a thread of its own, since a thread has one trace function only, which may be a debugger's.

    Raises:
        UnsupportedError: If the function changed a global name that it read.
    """
    files: set[str] = set()
    globals_read: dict[tuple[int, str], Global] = {}

    def note(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event != "call" or _is_foreign(code.co_filename):
            return
        files.add(code.co_filename)
        if "site-packages" in code.co_filename:
            return  # libraries, among them what listens to torch's logs
        spaces = [frame.f_globals]
        spaces += [vars(m) for n in code.co_names if _is_users_module(m := frame.f_globals.get(n))]
        for space in spaces:
            for name in code.co_names:
                value = space.get(name, _MISSING)
                is_library = isinstance(value, ModuleType) and not _is_users_module(value)
                if value is not _MISSING and not is_library and (id(space), name) not in globals_read:
                    globals_read[id(space), name] = Global(space, name, freeze(value))

    def run() -> Result:
        sys.settrace(note)  # without a function for its lines, a frame is reported once
        try:
            return function()
        finally:
            sys.settrace(None)

    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(run).result()
    _check_unchanged(globals_read.values())
    return result, Seen(frozenset(files), tuple(globals_read.values()))


@cache
def _is_foreign(file: str) -> bool:
    # <string>: functions that dataclasses and named tuples make
    return is_internal(file) or file == "<string>" or file.startswith(_PYTHON)


def _is_users_module(value: object) -> bool:
    file = getattr(value, "__file__", None) if isinstance(value, ModuleType) else None
    return file is not None and not _is_foreign(file) and "site-packages" not in file


def _check_unchanged(names: Iterable[Global]) -> None:
    for g in names:
        if not g.is_same():
            raise UnsupportedError(f"step changes the global {g.name}")
