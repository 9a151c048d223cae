"""Freeze values, to compare them with later values.

Values of the user's code are followed to any depth: attributes of objects and of their classes, closures, defaults and
attributes of functions. Classes and functions of libraries are compared by identity.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import logging
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator
from contextvars import ContextVar
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.compiler.nodes import UnsupportedError, is_internal

MOST_PARTS = 10_000  # lists and objects inside one value; comparing more would take longer than a short job
MISSING = object()  # placeholder for a name without a value

_STDLIB = sysconfig.get_path("stdlib")
_TRUSTED = ("torch", "numpy", "einops")  # results depend only on arguments and on torch's flags
_ITSELF = frozenset({str, bytes, type(None), torch.dtype, torch.device, torch.Size, range, type(Ellipsis)})
_NUMBERS = frozenset({bool, int, float, complex})
PLAIN = _ITSELF | _NUMBERS
# Compared by identity: nothing in them changes, or the changes cannot affect results.
FIXED = (
    types.BuiltinFunctionType, types.MethodWrapperType, types.WrapperDescriptorType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, types.CodeType,
    types.GenericAlias, types.UnionType, types.ModuleType, re.Pattern, slice, decimal.Decimal, datetime.date,
    datetime.time, datetime.timedelta, datetime.tzinfo, torch.finfo, torch.iinfo, torch._ops.OpOverload,
    torch._ops.OpOverloadPacket, torch.jit.ScriptFunction, type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip
SKIPPED_OF_CLASS = frozenset({"__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__slots__",
                               "__abstractmethods__", "__firstlineno__", "__static_attributes__", "__orig_bases__",
                               "__parameters__", "__annotate__", "__annotate_func__", "__annotations_cache__",
                               "__conditional_annotations__", "__classdictcell__", "_abc_impl"})  # fmt: skip
_MODULE = frozenset({*nn.Module().__dict__, "_is_replica"}) - {"training"}
_CELL = frozenset({"handle", "learned_states", "_home", "_names", "_known", "_shapes"})
SKIPPED = _MODULE | _CELL  # attributes of a module that are compared in another way, or that no step reads
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@cache
def is_library(file: str) -> bool:
    """Return whether a source file belongs to Python, torch, this package or another library that is trusted."""
    if is_internal(file) or any(file.startswith(folder) for folder in _trusted_folders()):
        return True
    is_installed = "site-packages" in file or "dist-packages" in file
    return file.startswith(_STDLIB) and not is_installed


def _trusted_folders() -> list[str]:
    loaded = [getattr(sys.modules.get(name), "__file__", None) for name in _TRUSTED]
    return [str(Path(file).parent) for file in loaded if file]


def is_users_module(name: str, module: object) -> bool:
    """Return whether a module is the user's; that of a prompt or a notebook, which has no file, is too."""
    file = getattr(module, "__file__", None)
    if file is not None:
        return not is_library(file)
    top = name.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in sys.builtin_module_names and top not in _TRUSTED


def _is_users_class(kind: type) -> bool:
    if not kind.__flags__ & _HEAP:
        return False
    module = sys.modules.get(kind.__module__)
    if is_users_module(kind.__module__, module):
        return True
    at: object = module
    for name in kind.__qualname__.split("."):  # a class that `type` made has the module of whoever called it
        at = getattr(at, name, None)
    return at is not kind and "<locals>" not in kind.__qualname__


_HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE: not a built-in type
MOST_CLASSES = 1024  # maximum number of classes whose bases are cached
_classes: dict[type, tuple[tuple[type, ...], tuple[type, ...]]] = {}


def list_user_classes(kind: type) -> tuple[type, ...]:
    """Return a class and its bases except those of libraries."""
    mro, classes = _classes.get(kind, ((), ()))
    if mro is not kind.__mro__:
        while len(_classes) >= MOST_CLASSES:
            _classes.pop(next(iter(_classes)))
        classes = tuple(c for c in kind.__mro__ if _is_users_class(c))
        _classes[kind] = kind.__mro__, classes
    return classes


def is_known(value: object) -> bool:
    """Return whether a library's value is one that users may replace: a function, a class, a module or a number."""
    return type(value) in PLAIN or isinstance(value, (*FIXED, types.FunctionType, type, property, staticmethod))


def is_static(owner: object) -> bool:
    """Return whether a function in C belongs to a module or a class, not to an object."""
    return isinstance(owner, (types.ModuleType, type)) or type(owner).__module__ == "pybind11_builtins"


class Same:
    """An object that is compared by identity, and kept alive so that no other object can get its id."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def freeze(value: object) -> object:
    """Return something that equals a later freeze of the value only if the value is still the same.

    Raises:
        UnsupportedError: If the value has too many parts to compare them in every call.
    """
    kind = type(value)
    if kind in _ITSELF:
        return value
    if kind in _NUMBERS:
        return _freeze_number(kind, value)
    return Freezer().freeze(value)


def _freeze_number(kind: type, value: object) -> tuple[object, ...]:
    # 1, 1.0 and True are equal, and so are 0.0 and -0.0, but not to a step
    return (kind, repr(value)) if value == 0 or kind is complex else (kind, value)


class Freezer:
    """Freeze one value, and record what was found in it.

    Attributes:
        codes: The code of every function of the user that the value contains.
        kinds: The libraries' classes of the modules that the value contains.
        opaque: What cannot be compared: the name of the attribute, and the reason.
        words: Every string in the value; it may be the name of an attribute.
        modules: The Python modules that the value contains.
    """

    def __init__(self, name: str = "") -> None:
        self.codes: set[types.CodeType] = set()
        self.kinds: set[type] = set()
        self.opaque: list[tuple[str, str]] = []
        self.words: set[str] = set()
        self.modules: list[types.ModuleType] = []
        self._name = name
        self._seen: dict[int, tuple[int, object]] = {}  # with the object, so that no other object can get its id

    def freeze(self, value: object) -> object:
        """Freeze a value; see the function of this name."""
        kind = type(value)
        if kind in _ITSELF:
            if kind is str:
                self.words.add(str(value))
            return value
        if kind in _NUMBERS:
            return _freeze_number(kind, value)
        if isinstance(value, Tensor):
            return Tensor, value.shape, value.dtype
        if id(value) in self._seen:
            return Same, self._seen[id(value)][0]
        if isinstance(value, FIXED):
            return self._freeze_fixed(value)
        self._seen[id(value)] = len(self._seen), value
        if len(self._seen) > MOST_PARTS:
            raise UnsupportedError(
                f"a setting of the cell has more than {MOST_PARTS} parts, too many to watch for changes"
            )
        if isinstance(value, type):
            return self._freeze_class(value)
        if kind is types.FunctionType:
            return self._freeze_function(value)
        return self._freeze_object(value, kind)

    def _freeze_fixed(self, value: object) -> object:
        owner = getattr(value, "__self__", None) if type(value) is types.BuiltinFunctionType else None
        if isinstance(value, types.ModuleType):
            self.modules.append(value)
        if owner is None or is_static(owner):
            return Same(value)
        return str(getattr(value, "__name__", "")), self.freeze(owner)  # a method, such as `table.get`

    def freeze_named(self, name: str, value: object) -> tuple[str, object]:
        """Freeze the value of an attribute or a global name."""
        before, self._name = self._name, name
        try:
            return name, self.freeze(value)
        finally:
            self._name = before

    def _freeze_function(self, function: Any) -> object:  # noqa: ANN401  # a function
        code = function.__code__
        if is_library(code.co_filename):
            wrapped = function.__dict__.get("__wrapped__")  # by a decorator such as once_differentiable
            return Same(function) if wrapped is None else (Same(function), self.freeze(wrapped))
        self.codes.add(code)
        parts = [function.__defaults__, function.__kwdefaults__, function.__dict__, *list_closure(function)]
        return Same(function), code, tuple([self.freeze(part) for part in parts if part])

    def _freeze_class(self, kind: type) -> object:
        classes = [c for c in list_user_classes(kind) if c is kind or id(c) not in self._seen]
        if not classes:
            return Same(kind)
        parts: list[object] = [Same(kind)]
        for c in classes:
            self._seen.setdefault(id(c), (len(self._seen), c))
            parts += [self.freeze_named(n, v) for n, v in vars(c).items() if n not in SKIPPED_OF_CLASS]
        if list_user_classes(type(kind)):
            parts.append(self.freeze(type(kind)))
        return tuple(parts)

    def _freeze_object(self, value: Any, kind: type) -> object:  # noqa: ANN401  # of any class
        if isinstance(value, logging.Logger):  # refers to all others
            return Same(value), value.disabled, value.getEffectiveLevel()
        content = self._find_content(value, kind)
        if content is None:
            self.opaque.append((self._name, _explain(value)))
            return Same(value)
        parts: list[object] = [self.freeze(kind) if list_user_classes(kind) else kind, *content]
        state = getattr(value, "__dict__", None)
        if isinstance(value, nn.Module):
            self.kinds.update(c for c in kind.__mro__ if c.__module__.startswith("torch."))
            parts += self._freeze_module(value)
        elif state:
            parts += [self.freeze_named(n, v) if type(n) is str else (n, self.freeze(v)) for n, v in state.items()]
        for c in kind.__mro__ if kind.__flags__ & _HEAP else ():
            slots = [(n, d) for n, d in vars(c).items() if type(d) is types.MemberDescriptorType]
            parts += [self.freeze_named(n, _read_slot(d, value)) for n, d in slots if "__slots__" in vars(c)]
        return tuple(parts)

    def _freeze_module(self, module: nn.Module) -> list[object]:
        own = module.__dict__
        parts: list[object] = [self.freeze_named(n, v) for n, v in own.items() if n not in SKIPPED]
        parts += [self.freeze_named(n, t) for g in ("_parameters", "_buffers") for n, t in own[g].items()]
        parts.append(any(own[hooks] for hooks in HOOKS))
        return parts + [self.freeze_named(n, m) for n, m in own["_modules"].items()]

    def _find_content(self, value: Any, kind: type) -> list[object] | None:  # noqa: ANN401  # of any class
        """Return what a value holds besides its attributes; None if that cannot be inspected."""
        if isinstance(value, (list, tuple, deque)):
            return [self.freeze(v) for v in value]
        if isinstance(value, (dict, types.MappingProxyType)):
            factory = [self.freeze(value.default_factory)] if isinstance(value, defaultdict) else []
            return factory + [
                self.freeze_named(k, v) if type(k) is str else (self.freeze(k), self.freeze(v))
                for k, v in value.items()
            ]
        if isinstance(value, (set, frozenset)):
            return [self.freeze(v) for v in value]
        if isinstance(value, ContextVar):
            return [Same(value), self.freeze(value.get(MISSING))]
        if isinstance(value, types.MethodType):
            return [self.freeze(value.__func__), self.freeze(value.__self__)]
        if isinstance(value, partial):
            return [self.freeze(part) for part in (value.func, value.args, value.keywords)]
        if isinstance(value, (staticmethod, classmethod)):
            return [self.freeze(value.__func__)]
        if isinstance(value, property):
            return [self.freeze(f) for f in (value.fget, value.fset, value.fdel)]
        if isinstance(value, weakref.ref):
            return [self.freeze(value())]
        if isinstance(value, functools._lru_cache_wrapper):
            return [Same(value)] if is_of_library(value) else None
        return self._find_bytes(value, kind)

    def _find_bytes(self, value: Any, kind: type) -> list[object] | None:  # noqa: ANN401  # of any class
        if kind is object:
            return [Same(value)]
        base = next((c for c in (str, bytes, *_NUMBERS) if isinstance(value, c)), None)
        if kind.__module__.partition(".")[0] == "numpy" and hasattr(value, "tobytes"):
            if value.dtype.hasobject:
                return [self.freeze(value.tolist())]
            if value.size > MOST_PARTS:
                raise UnsupportedError(
                    f"a setting of the cell has more than {MOST_PARTS} parts, too many to watch for changes"
                )
            return [value.tobytes(), str(value.dtype), value.shape]
        if (
            kind.__module__ in ("numpy", "typing", "_struct", "_operator", "zoneinfo")
            or kind.__name__ == "_tuplegetter"
        ):
            return [Same(value)]  # types and functions
        if base is not None:
            return [base.__repr__(value)]  # type: ignore[call-arg]
        if isinstance(value, (bytearray, memoryview)) or kind.__module__ == "array":
            return [bytes(value)]
        if isinstance(value, threading.local):
            return [Same(value)]
        return None if hides_state(kind) else []


@cache
def _pointer() -> int:
    class One:
        __slots__ = ("a",)

    return One.__basicsize__ - object.__basicsize__


@functools.lru_cache(maxsize=1024)
def hides_state(kind: type) -> bool:
    """Return whether objects of a class hold data outside their attributes, as those of C extensions do."""
    owners = [c for c in kind.__mro__ if "__slots__" in vars(c)]
    slots = sum(type(d) is types.MemberDescriptorType for c in owners for d in vars(c).values())
    visible = slots + (kind.__weakrefoffset__ > 0) + (kind.__dictoffset__ > 0)
    return bool(kind.__itemsize__) or kind.__basicsize__ > object.__basicsize__ + visible * _pointer()


def _read_slot(descriptor: types.MemberDescriptorType, value: object) -> object:
    try:
        return descriptor.__get__(value)
    except AttributeError:  # not set
        return None


def _explain(value: Any) -> str:  # noqa: ANN401  # of any class
    if isinstance(value, functools._lru_cache_wrapper):
        return f"calls {value.__wrapped__.__qualname__}, whose results functools.lru_cache keeps"
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, Iterator):
        return f"may read from an iterator ({name}), which returns something else in every call"
    return f"may read an object of type {name}, whose content cannot be compared"


def is_of_library(wrapper: Any) -> bool:  # noqa: ANN401  # of lru_cache
    code = getattr(wrapper.__wrapped__, "__code__", None)
    return code is None or is_library(code.co_filename)


def list_closure(function: types.FunctionType) -> list[object]:
    """Return the values of a function's closure, without the class that `super` needs."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return [(n, _content(cell)) for n, cell in zip(names, cells, strict=True) if n != "__class__"]


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return MISSING
