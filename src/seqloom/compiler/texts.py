"""Describe values as text that other processes can compare."""

from __future__ import annotations

import functools
import hashlib
import types
from contextvars import ContextVar
from typing import Any

from seqloom.compiler.values import (
    FIXED,
    MISSING,
    PLAIN,
    SKIPPED_OF_CLASS,
    is_library,
    is_of_library,
    is_static,
    list_closure,
    list_user_classes,
)


class _NoTextError(Exception):
    """A value cannot be described as text."""


def write(value: object) -> str | None:
    """Return a value as text; None if that is not possible."""
    try:
        return _write(value, ())
    except (_NoTextError, RecursionError):
        return None


def _write(value: Any, outer: tuple[object, ...]) -> str:  # noqa: ANN401  # of any class
    kind = type(value)
    if kind in PLAIN:
        return repr(value)
    if value is MISSING:
        return "missing"
    if any(value is o for o in outer):
        return f"outer {[value is o for o in outer].index(True)}"
    outer = (*outer, value)
    if kind in (list, tuple):
        return f"{kind.__name__}{[_write(v, outer) for v in value]}"
    if kind is dict:
        return f"dict{[(_write(k, outer), _write(v, outer)) for k, v in value.items()]}"
    if kind in (set, frozenset):
        return f"{kind.__name__}{sorted(_write(v, outer) for v in value)}"
    if kind is ContextVar:
        return f"variable {value.name} {_write(value.get(MISSING), outer)}"
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if kind is property:
        return f"property{[_write(f, outer) for f in (value.fget, value.fset, value.fdel)]}"
    if kind in (staticmethod, classmethod):
        return f"{kind.__name__} {_write(value.__func__, outer)}"
    if isinstance(value, FIXED):
        return _write_fixed(value)
    if kind is types.FunctionType:
        return _write_function(value, outer)
    if isinstance(value, functools._lru_cache_wrapper) and is_of_library(value):
        return f"cached {_write(value.__wrapped__, outer)}"
    if isinstance(value, type):
        return _write_class(value, outer)
    if kind.__module__ == "typing":
        return repr(value)
    raise _NoTextError


def _write_fixed(value: Any) -> str:  # noqa: ANN401  # one of FIXED
    owner = getattr(value, "__self__", None)
    if owner is not None and not is_static(owner):
        raise _NoTextError
    name = getattr(value, "__qualname__", None)
    if name is None:
        raise _NoTextError
    return f"{type(value).__name__} {getattr(value, '__module__', '')} {name}"


def _write_function(function: types.FunctionType, outer: tuple[object, ...]) -> str:
    if "<" in function.__qualname__ and not is_library(function.__code__.co_filename):
        raise _NoTextError
    name = f"{function.__module__}.{function.__qualname__} {digest_code(function.__code__)}"
    if is_library(function.__code__.co_filename):
        return name
    parts = [function.__defaults__, function.__kwdefaults__, function.__dict__, *list_closure(function)]
    return f"{name}{[_write(part, outer) for part in parts if part]}"


def _write_class(kind: type, outer: tuple[object, ...]) -> str:
    classes = list_user_classes(kind)
    if "<" in kind.__qualname__ and classes:
        raise _NoTextError
    parts = [
        (c.__qualname__, n, _write(v, outer))
        for c in (*classes, *list_user_classes(type(kind)))
        for n, v in vars(c).items()
        if n not in SKIPPED_OF_CLASS
    ]
    return f"{kind.__module__}.{kind.__qualname__}{parts}"


def digest_code(code: types.CodeType) -> str:
    """Return a digest of what a function does, independent of its line numbers."""

    def list_parts(code: types.CodeType) -> list[object]:
        constants = [list_parts(c) if isinstance(c, types.CodeType) else _sort(c) for c in code.co_consts]
        names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
        return [code.co_code, code.co_flags, code.co_argcount, code.co_kwonlyargcount, names, constants]

    return hashlib.sha256(repr(list_parts(code)).encode()).hexdigest()[:16]


def _sort(constant: object) -> object:
    return sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant
