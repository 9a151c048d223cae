"""Find the names that code reads: global names, and the attributes of modules and classes reached from them.

A name after a dot may belong to any module or class that the code can reach; all of them count.
"""

from __future__ import annotations

import builtins
import dis
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import NamedTuple, Protocol

from torch import Tensor, nn

from seqloom.compiler.guards import GuardedRead, Read, look_up_class, name_place
from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.values import MISSING, Freezer, is_known, is_users_module, list_user_classes
from seqloom.core.cell import Cell

# Functions that read names that do not appear in the code; every reachable name then counts.
_ANY_NAME = frozenset({"getattr", "vars", "globals", "locals", "dir", "__dict__", "__getattribute__", "attrgetter",
                       "methodcaller", "getmembers", "import_module", "modules", "f_globals",
                       "__globals__"})  # fmt: skip
_CALLED = ("__call__", "__getattr__", "_call_impl", "_wrapped_call_impl", "forward")
_NEW_EVERY_TIME = frozenset({"__dict__", "__class__", "__init__", "__doc__"})  # or read in another way
_BINARY = {"+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
           "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift"}  # fmt: skip
_COMPARISONS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_OTHERS = {"UNARY_NEGATIVE": "neg", "UNARY_POSITIVE": "pos", "UNARY_INVERT": "invert", "BINARY_SUBSCR": "getitem",
           "BINARY_SLICE": "getitem", "STORE_SUBSCR": "setitem", "STORE_SLICE": "setitem", "GET_ITER": "iter",
           "UNPACK_SEQUENCE": "iter"}  # fmt: skip


class Watched(Protocol):
    """What has run; see `watch.Watcher`."""

    codes: dict[tuple[CodeType, int], tuple[bool, Mapping[str, object], Mapping[str, object]]]
    environment: set[str]
    variables: list[ContextVar[object]]
    has_flags: bool


class _Names(NamedTuple):
    """The names in a function's code: global names, names after a dot, imported modules, strings and operators."""

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    words: frozenset[str]
    operators: frozenset[str]


@lru_cache(maxsize=1024)
def _list_names(code: CodeType) -> _Names:
    names: dict[str, set[str]] = {"global": set(), "import": set(), "operator": set()}
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            names["global"].add(i.argval)
        elif i.opname == "IMPORT_NAME":
            names["import"].add(i.argval)
        names["operator"].update(_name_operator(i))
    words = {c for c in code.co_consts if isinstance(c, str)}
    return _Names(*map(frozenset, (names["global"], code.co_names, names["import"], words, names["operator"])))


def _name_operator(i: dis.Instruction) -> tuple[str, ...]:
    """Return the methods that an instruction may call."""
    if i.opname == "BINARY_OP" and i.argrepr.startswith("["):
        return ("__getitem__",)
    if i.opname == "BINARY_OP":
        name = _BINARY[i.argrepr.removesuffix("=")]
        return f"__{name}__", f"__r{name}__", f"__i{name}__"
    if i.opname == "COMPARE_OP":
        return tuple(f"__{name}__" for sign, name in _COMPARISONS.items() if sign in i.argrepr)
    return (f"__{_OTHERS[i.opname]}__",) if i.opname in _OTHERS else ()


def find_places(watched: Watched, cell: Cell) -> list[GuardedRead]:
    """Return every name that a step of a cell may have read outside the cell.

    Raises:
        UnsupportedError: If a value cannot be compared, or if code ran that cannot be analysed.
    """
    finder = _Finder(watched, cell)
    finder.find()
    if finder.reads_any and finder.freezer.words - finder.names:  # such as getattr(torch, self.activation)
        finder = _Finder(watched, cell, finder.freezer.words)
        finder.find()
    finder.check_known()
    places = [
        GuardedRead(Read(kind, name_place(space), tuple(names)), space) for kind, space, names in finder.spaces.values()
    ]
    if watched.environment:
        places.append(GuardedRead(Read("environment", "", tuple(sorted(watched.environment))), None))
    if watched.has_flags:
        places.append(GuardedRead(Read("flags", "", ("",)), None))
    return places + [
        GuardedRead(Read("variable", v.name, ("",)), v) for v in watched.variables if id(v) not in finder.seen
    ]


class _Finder:
    """Follow names from the code that has run."""

    def __init__(self, watched: Watched, cell: Cell, words: set[str] | None = None) -> None:
        self.cell, self.codes = cell, watched.codes
        self.freezer = Freezer()
        self.user = [code for (code, _), (is_users, _, _) in watched.codes.items() if is_users]
        read = [_list_names(code) for code in self.user]
        self.names = frozenset(words or ()).union(*(r.attributes | r.words for r in read))
        self.reads_any = not _ANY_NAME.isdisjoint(self.names)
        self.spaces: dict[tuple[str, int], tuple[str, object, dict[str, None]]] = {}
        self.seen: set[int] = set()
        self._reached: set[tuple[int, frozenset[str]]] = set()

    def find(self) -> None:
        """Fill `spaces` with every name and the module or class that defines it."""
        self.freezer.freeze(self.cell)
        every = set(self.names)
        for (code, _), (is_users, names, known) in self.codes.items():
            read = _list_names(code)
            every |= read.attributes | read.operators
            for name in read.globals:
                self._read_global(name, names, known, is_users, self.names if is_users else read.attributes)
            for module in _list_imports(read.imports, names) if is_users else ():
                self._reach(module, self.names)
        while self.freezer.modules:
            self._reach(self.freezer.modules.pop(), self.names)
        for kind in (Tensor, *sorted(self.freezer.kinds, key=str)):
            self._read_class(kind, frozenset(every))

    def _read_global(
        self,
        name: str,
        names: Mapping[str, object],
        known: Mapping[str, object],
        is_users: bool,
        attributes: frozenset[str],
    ) -> None:
        value = names.get(name, MISSING)
        if not is_users and not is_known(value):
            return
        self._add("global", names, name)
        if value is MISSING:
            value = known.get(name, MISSING)
            self._add("global", vars(builtins), name)
        self._follow(name, value, is_users, attributes)

    def _follow(self, name: str, value: object, is_users: bool, attributes: frozenset[str]) -> None:
        if isinstance(value, ModuleType):
            self._reach(value, attributes)
        elif isinstance(value, type) and not list_user_classes(value):
            if is_users and issubclass(value, (Tensor, nn.Module)):
                self._read_class(value, attributes)
        elif is_users:
            self.freezer.freeze_named(name, value)
            if isinstance(value, ContextVar):
                self.seen.add(id(value))

    def _reach(self, module: ModuleType, attributes: frozenset[str]) -> None:
        if (id(module), attributes) in self._reached:
            return
        self._reached.add((id(module), attributes))
        if attributes is self.names and module.__name__ == "numpy.random":
            raise UnsupportedError(f"step may draw random numbers of NumPy{self._find_line('random')}")
        is_users = is_users_module(module.__name__, module)
        names = attributes
        if is_users and self.reads_any:
            names = attributes | {n for n in vars(module) if not n.startswith("__")}
        for name in sorted(names):
            if is_known(vars(module).get(name, MISSING)) if not is_users else not name.startswith("__"):
                self._add("global", vars(module), name)
                self._follow(name, vars(module).get(name), is_users, attributes)
            of_class = type(module) is not ModuleType and name in dir(type(module)) and not name.startswith("__")
            if of_class and name not in vars(module):
                self._add("attribute", module, name)

    def _read_class(self, kind: type, names: frozenset[str]) -> None:
        special = set() if issubclass(kind, Tensor) else _CALLED
        for name in sorted((names - _NEW_EVERY_TIME).union(special)):
            if is_known(look_up_class(kind, name)):
                self._add("class", kind, name)

    def _add(self, kind: str, space: object, name: str) -> None:
        self.spaces.setdefault((kind, id(space)), (kind, space, {}))[2][name] = None

    def check_known(self) -> None:
        """Raise UnsupportedError if something that the step may read cannot be compared."""
        for name, reason in self.freezer.opaque:
            if self.reads_any or not name or name in self.names:
                raise UnsupportedError(f"step {reason}{self._find_line(name)}")
        inner = {c for code in self.user for c in _list_inner(code)}
        for code in self.user:
            if code.co_filename != "<string>" and code not in self.freezer.codes and code not in inner:
                place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
                raise UnsupportedError(f"step calls {code.co_qualname} ({place}), which it reaches in an unknown way")

    def _find_line(self, name: str) -> str:
        for code in self.user:
            for i in dis.get_instructions(code):
                if name and i.argval == name and i.positions is not None:
                    return f" ({Path(code.co_filename).name}:{i.positions.lineno})"
        return ""


def _list_inner(code: CodeType) -> Iterator[CodeType]:
    """Return the code of functions that a function defines."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _list_inner(constant)


def _list_imports(imports: frozenset[str], names: Mapping[str, object]) -> Iterator[ModuleType]:
    """Return the modules that an import inside a function may mean, absolute or relative."""
    package = str(names.get("__package__") or "")
    parents = [package.rsplit(".", i)[0] for i in range(package.count(".") + 1)] if package else []
    for name in imports:
        for full in (name, *(f"{p}.{name}" if name else p for p in parents)):
            for i in range(full.count(".") + 1):
                module = sys.modules.get(full.rsplit(".", i)[0])
                if module is not None:
                    yield module
