"""Guards on what a step reads outside its cell.

A plan is valid only while every value that its step has read is unchanged: global names, names of modules and classes,
variables of the environment, context variables and torch's flags.
"""

from __future__ import annotations

import hashlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from seqloom.compiler.flags import read_flags
from seqloom.compiler.texts import write
from seqloom.compiler.values import MISSING, PLAIN, Same, freeze


class Read(NamedTuple):
    """Names that a step reads in one place.

    Attributes:
        kind: "global" (names of a module), "class", "attribute" (of a module that computes it), "environment", "flags"
            or "variable".
        place: The module, or module:class; empty if the kind says it all.
        names: The names.
    """

    kind: str
    place: str
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class GuardedRead:
    """A read, and the object that it reads from."""

    read: Read
    space: Any

    def look_up(self, name: str) -> object:
        """Return the value of a name now."""
        return _LOOK_UP[self.read.kind](self.space, name)


def _look_up_global(space: Mapping[str, object], name: str) -> object:
    return space.get(name, MISSING)


def look_up_class(space: type, name: str) -> object:
    """Return an attribute of a class or of its bases as it is stored."""
    return next((vars(c)[name] for c in space.__mro__ if name in vars(c)), MISSING)


def _look_up_attribute(space: object, name: str) -> object:
    return getattr(space, name, MISSING)


def _look_up_environment(space: object, name: str) -> object:
    return os.environ.get(name, MISSING) if name else tuple(os.environ.items())


def _look_up_flag(space: object, name: str) -> object:
    return read_flags()


def _look_up_variable(space: ContextVar[object], name: str) -> object:
    return space.get(MISSING)


_LOOK_UP: dict[str, Callable[[Any, str], object]] = {
    "global": _look_up_global,
    "class": look_up_class,
    "attribute": _look_up_attribute,
    "environment": _look_up_environment,
    "flags": _look_up_flag,
    "variable": _look_up_variable,
}


class Guards:
    """Guards that compare what a step has read with what it would read now.

    Args:
        places: What it has read; the current values are recorded.
    """

    def __init__(self, places: Iterable[GuardedRead] = ()) -> None:
        self.places = tuple(places)
        self._same: list[tuple[Any, Any, list[str], tuple[object, ...], bool]] = []  # compared by identity
        self._absent: list[tuple[Any, frozenset[str]]] = []
        self._frozen: list[tuple[GuardedRead, str, object]] = []
        for place in self.places:
            values = {name: place.look_up(name) for name in place.read.names}
            fast = [n for n, v in values.items() if place.read.kind in ("global", "class") and _is_fixed(v)]
            wrapped = [n for n, v in values.items() if place.read.kind == "class" and _is_wrapped(v)]
            absent = [n for n, v in values.items() if place.read.kind == "global" and v is MISSING]
            if absent:
                self._absent.append((place.space.keys(), frozenset(absent)))
            if fast or wrapped:
                self._add_fast(place, [*fast, *wrapped, *(f"{n}.__wrapped__" for n in wrapped)], values)
            rest = set(values) - {*fast, *wrapped, *absent}
            self._frozen += [(place, n, freeze(values[n])) for n in values if n in rest]

    def _add_fast(self, place: GuardedRead, names: list[str], values: Mapping[str, object]) -> None:
        get: Any = operator.itemgetter if place.read.kind == "global" else operator.attrgetter
        if place.read.kind == "class":
            values = {n: operator.attrgetter(n)(place.space) for n in names}
        names = [*names, names[-1]]  # with two names or more a getter returns a tuple
        numbers = any(isinstance(values[n], (int, float, complex)) for n in names)  # 1, 1.0 and True are equal
        self._same.append((get(*names), place.space, names, tuple(values[n] for n in names), numbers))

    def find_change(self) -> str | None:
        """Return a name whose value has changed; None if there is none."""
        for get, space, names, values, numbers in self._same:
            try:
                now = get(space)
            except (KeyError, AttributeError) as error:
                return str(error)
            if (now != values or numbers) and not _are_equal(now, values):
                return next(n for n, a, b in zip(names, now, values, strict=True) if a is not b)
        for keys, absent in self._absent:
            if not absent.isdisjoint(keys):
                return next(iter(absent.intersection(keys)))
        for place, name, frozen in self._frozen:
            if freeze(place.look_up(name)) != frozen:
                return name or place.read.kind
        return None

    def hold(self) -> bool:
        """Return whether every value is unchanged. Runs in every call of a layer."""
        return self.find_change() is None

    def write(self) -> dict[str, Any] | None:
        """Return the reads and a digest of their values, for other processes; None if a value cannot be described."""
        digest = _digest(self.places)
        if digest is None or any(p.read.kind == "variable" for p in self.places):
            return None
        if any(_find_space(p.read) is not p.space for p in self.places):
            return None  # such as the names of a function that was created by exec
        return {"reads": [p.read for p in self.places], "digest": digest}


NO_GUARDS = Guards()


def read_guards(data: Mapping[str, Any]) -> Guards | None:
    """Return the guards that `Guards.write` wrote; None if a value has changed."""
    reads = [Read(kind, place, tuple(names)) for kind, place, names in data["reads"]]
    spaces = [_find_space(read) for read in reads]
    if any(space is MISSING for space in spaces):
        return None
    places = [GuardedRead(read, space) for read, space in zip(reads, spaces, strict=True)]
    return Guards(places) if _digest(places) == data["digest"] else None


def _digest(places: Sequence[GuardedRead]) -> str | None:
    texts = [(place.read, write(place.look_up(name))) for place in places for name in place.read.names]
    if any(text is None for _, text in texts):
        return None
    return hashlib.sha256(repr(texts).encode()).hexdigest()


def _find_space(read: Read) -> Any:  # noqa: ANN401  # a dictionary, a class or a module
    if read.kind in ("environment", "flags"):
        return None
    name, _, path = read.place.partition(":")
    module = sys.modules.get(name)
    if module is None:
        return MISSING
    if read.kind == "global":
        return vars(module)
    space: object = module
    for part in path.split(".") if path else ():
        space = vars(space).get(part, MISSING) if hasattr(space, "__dict__") else MISSING
    return space


def name_place(space: object) -> str:
    """Return the name by which `Guards.write` refers to a module's names, a module or a class."""
    if isinstance(space, type):
        return f"{space.__module__}:{space.__qualname__}"
    if isinstance(space, ModuleType):
        return space.__name__
    return str(space.get("__name__")) if isinstance(space, dict) else ""


def _is_fixed(value: object) -> bool:
    """Return whether a value is the same as long as it is the same object."""
    if type(value) in PLAIN:
        return True
    if value is MISSING or isinstance(value, (classmethod, staticmethod)):
        return False  # read through the class, they are a new object every time
    if isinstance(value, ModuleType):
        return True
    return isinstance(freeze(value), Same)


def _is_wrapped(value: object) -> bool:
    """Return whether a value is a library's function behind a decorator of a library: both are compared by identity."""
    if not isinstance(value, FunctionType):
        return False
    frozen = freeze(value)
    return isinstance(frozen, tuple) and len(frozen) == 2 and all(isinstance(part, Same) for part in frozen)


def _are_equal(now: Sequence[object], values: Sequence[object]) -> bool:
    return all(a is b or (type(a) in PLAIN and freeze(a) == freeze(b)) for a, b in zip(now, values, strict=True))
