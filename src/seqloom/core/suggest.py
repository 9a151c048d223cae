"""Suggestions for misspelt names and keywords: "did you mean ...?"."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Unpack, get_args, get_origin, get_type_hints

from seqloom.core.errors import UserTypeError

MIN_SIMILARITY = 0.5  # from 0 to 1, for names without case and hyphens


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'gru'?", or "" if no known name is similar.

    Args:
        name: The unknown name.
        known: The valid names.
    """
    names = list(known)
    similar = get_close_matches(name, names) or get_close_matches(
        name.lower().replace("-", "_"), names, cutoff=MIN_SIMILARITY
    )
    swapped = [other for other in similar if sorted(other) == sorted(name)]  # the same letters in another order
    return f"did you mean {(swapped or similar)[0]!r}?" if similar else ""


def check_keywords(
    function: Callable[..., Any], keywords: Iterable[str], title: str, hints: Mapping[str, str] | None = None
) -> None:
    """Raise an error for a keyword that a function does not take, and suggest the most similar one.

    Args:
        function: A function; one that takes any keyword (`**settings`) is not checked.
        keywords: The keywords of the call.
        title: What the message calls the function.
        hints: What to say of keywords that are no misspellings, by keyword.

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


class Checked(type):
    """Metaclass that checks the keywords of a constructor call and shows `__init__`'s arguments as signature.

    A class may have `keyword_hints`, what to say of keywords that it does not take, by keyword.
    """

    if not TYPE_CHECKING:  # type checkers must see the signature of __init__

        def __call__(cls, *args: object, **settings: object) -> object:
            if settings:
                check_keywords(cls.__init__, settings, cls.__name__, getattr(cls, "keyword_hints", None))
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
