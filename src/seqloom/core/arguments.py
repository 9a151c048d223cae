"""Check the arguments of constructors: misspelt or renamed keywords, wrong types and wrong values."""

from __future__ import annotations

import inspect
import math
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Union, Unpack, get_args, get_origin, get_type_hints

import torch

from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.plurals import shorten
from seqloom.core.renamed import take_renamed
from seqloom.core.suggest import suggest

MAX_INT = 2**31 - 1  # torch and the kernels count features, layers and steps in 32 bits
_POSITIVE = """
    input_size hidden_size num_layers dim heads kv_heads memory_size rank gate_rank features state_channels expand
    writes rows width substeps slots segment horizon targets tags symbols classes outputs max_length chunk stack
    parallel
"""
POSITIVE = frozenset(_POSITIVE.split())  # arguments that count something and must be at least 1
SHARES = frozenset({"dropout", "attention_dropout"})  # between 0 and 1
_hints: weakref.WeakKeyDictionary[type, list[tuple[inspect.Parameter, Any]]] = weakref.WeakKeyDictionary()


def check_keywords(
    function: Callable[..., Any], keywords: Iterable[str], title: str, hints: Mapping[str, str] | None = None
) -> None:
    """Raise an error for a keyword that a function does not take, and suggest the most similar one.

    Args:
        function: A function; one that takes any keyword (`**settings`) is not checked.
        keywords: The keywords of the call.
        title: What the message calls the function.
        hints: Messages for keywords that are not misspellings, by keyword.

    Raises:
        UserTypeError: For the first unknown keyword.
    """
    parameters = list_parameters(function)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters]
    for name in keywords:
        if name not in known:
            hint = (hints or {}).get(name) or suggest(name, known) or f"it takes: {', '.join(known)}"
            raise UserTypeError(f"{title} has no argument {name!r}; {hint}")


def list_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a method without `self`.

    `**options: Unpack[Options]` is replaced by the keywords of the TypedDict `Options`.
    """
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    if not parameters or parameters[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return parameters
    hint = get_type_hints(function).get(parameters[-1].name)
    if get_origin(hint) is not Unpack:
        return parameters
    options = get_type_hints(get_args(hint)[0])
    kind = inspect.Parameter.KEYWORD_ONLY
    return [*parameters[:-1], *(inspect.Parameter(name, kind, annotation=t) for name, t in options.items())]


def check_values(cls: type, args: Sequence[object], settings: Mapping[str, object]) -> None:
    """Raise an error for an argument of a constructor whose type or value does not fit its annotation.

    Arguments without annotation, and annotations that this module does not know, are not checked.

    Args:
        cls: The class.
        args: Positional arguments of the call.
        settings: Keywords of the call.

    Raises:
        UserTypeError: If an argument has the wrong type; the message has its name, its value and the expected type.
        UserError: If a number is out of range.
    """
    if cls not in _hints:
        _hints[cls] = _read_hints(cls)
    for i, (parameter, hint) in enumerate(_hints[cls]):
        if i < len(args) and parameter.kind is not parameter.KEYWORD_ONLY:
            value = args[i]
        elif parameter.name in settings:
            value = settings[parameter.name]
        else:
            continue
        if parameter.name == "device":
            check_device(f"{cls.__name__}: device", value)
        elif value is not parameter.default and hint is not Any:
            check_value(f"{cls.__name__}: {parameter.name}", value, hint)


def check_value(name: str, value: object, hint: object) -> None:
    """Raise an error unless a value fits a type and, for numbers, the range that the argument's name implies.

    Args:
        name: The name of the argument, which may follow a title and a colon.
        value: Its value.
        hint: Its type, such as `int | None`.

    Raises:
        UserTypeError: If the type is wrong.
        UserError: If the value is out of range.
    """
    if not _fits(value, hint):
        raise UserTypeError(f"{name} must be {_describe(hint)}, got {shorten(repr(value))}")
    if isinstance(value, bool) or not isinstance(value, Real):
        return
    short = name.rpartition(" ")[2]
    number = float(min(max(int(value), -(2**63)), 2**63)) if isinstance(value, Integral) else float(value)
    if short in SHARES:
        if not 0 <= number <= 1:
            raise UserError(f"{name} must be a number between 0 and 1, got {value}")
    elif isinstance(value, Integral):
        least = int(short in POSITIVE)
        if number < least:
            # Torch's wording.
            bound = "greater than 0" if short in ("input_size", "hidden_size") else f"at least {least}"
            raise UserError(f"{name} must be {bound}, got {value}")
        if number > MAX_INT:
            raise UserError(f"{name} must be at most {MAX_INT:,}, got {shorten(str(value))}")
    elif not math.isfinite(number):
        raise UserError(f"{name} must be a finite number, got {value}")


def check_device(name: str, device: object) -> None:
    """Raise a UserError unless torch knows a device; None is the default device."""
    try:
        torch.device("cpu" if device is None else device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        raise UserError(f"{name} must be a device such as 'cpu' or 'cuda:1', got {shorten(repr(device))}") from None


def _read_hints(cls: type) -> list[tuple[inspect.Parameter, Any]]:
    """Return the parameters of a constructor with their types; Any for those that cannot be read."""
    function: Any = cls.__init__  # type: ignore[misc]
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):  # a user's annotation may use names that are imported only for type checkers
        hints = {}
    named = [p for p in list_parameters(function) if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [
        (p, hints.get(p.name, Any if isinstance(p.annotation, str) or p.annotation is p.empty else p.annotation))
        for p in named
    ]


def _fits(value: object, hint: Any) -> bool:  # noqa: ANN401  # any annotation
    """Return whether a value has a type; True for types that are not known here."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner if isinstance(value, str | int | None) else False
    if origin is tuple or origin is Sequence:
        if isinstance(value, str | bytes) or not isinstance(value, tuple if origin is tuple else Sequence):
            return False
        return all(_fits(one, inner[0]) for one in value)
    if origin is Callable:
        return callable(value)
    if hint is None or hint is type(None):
        return value is None
    if hint is bool:
        return isinstance(value, bool) or type(value).__name__ == "bool"  # numpy's
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool)
    if isinstance(hint, type) and origin is None and not getattr(hint, "_is_protocol", False):
        return isinstance(value, hint)
    return True


def _describe(hint: Any) -> str:  # noqa: ANN401  # any annotation
    """Describe a type in words: "a whole number or None"."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_describe(one) for one in inner))
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if origin is tuple or origin is Sequence:
        return f"a {'tuple' if origin is tuple else 'sequence'}, each item {_describe(inner[0])}"
    if origin is Callable:
        return "a function"
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a string", type(None): "None"}
    return words.get(hint) or f"a {getattr(hint, '__name__', hint)}"


class Checked(type):
    """Metaclass that checks the arguments of a constructor call and shows those of `__init__` as its signature.

    A class may define `keyword_hints` (messages for keywords that it does not accept, by keyword) and `renamed` (the
    new names of arguments by their old ones).
    """

    if not TYPE_CHECKING:  # type checkers must see the signature of __init__

        def __call__(cls, *args: object, **settings: object) -> object:
            if settings:
                renamed = getattr(cls, "renamed", {})
                settings = take_renamed(cls.__name__, settings, renamed)
                hints = {old: f"it is now called {new!r}" for old, new in renamed.items()}
                hints |= getattr(cls, "keyword_hints", {})
                check_keywords(cls.__init__, settings, cls.__name__, hints)
            check_values(cls, args, settings)
            return super().__call__(*args, **settings)

    @property
    def __signature__(cls) -> inspect.Signature:
        own = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        above = inspect.signature(cls.__mro__[1].__init__).parameters  # type: ignore[misc]
        parameters = list_parameters(cls.__init__)  # type: ignore[misc]
        unpacked = {p.name for p in parameters} - set(own)  # their defaults are those of the base class
        return inspect.Signature(
            [p.replace(default=above[p.name].default) if p.name in unpacked else p for p in parameters]
        )
