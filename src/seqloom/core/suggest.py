"""Name what a person probably meant: "did you mean ...?" for names and for keywords."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Unpack, get_args, get_origin, get_type_hints

from seqloom.core.errors import UserTypeError

CUTOFF = 0.5  # how alike two names must be, from 0 to 1, once case and hyphens are left aside


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'gru'?", or "" if no known name is similar.

    Args:
        name: What was given.
        known: The names that would have been right.
    """
    names = list(known)
    near = get_close_matches(name, names, n=1) or get_close_matches(
        name.lower().replace("-", "_"), names, n=1, cutoff=CUTOFF
    )
    return f"did you mean {near[0]!r}?" if near else ""


def check_keywords(function: Callable[..., Any], keywords: Iterable[str], title: str) -> None:
    """Raise an error for a keyword that a function does not take, and name the nearest one that it takes.

    Args:
        function: A function; one that takes any keyword (`**settings: Any`) is not checked.
        keywords: The names that were given.
        title: What the message calls the function.

    Raises:
        UserTypeError: For the first keyword that is not known.
    """
    parameters = list_parameters(function)
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters]
    for name in keywords:
        if name not in known:
            hint = suggest(name, known) or f"it takes: {', '.join(known)}"
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
    """Check keywords when an instance is made. `inspect.signature` shows the arguments of `__init__`."""

    if not TYPE_CHECKING:  # so that type checkers read __init__

        def __call__(cls, *args: Any, **settings: Any) -> Any:
            if settings:
                check_keywords(cls.__init__, settings, cls.__name__)
            return super().__call__(*args, **settings)

    @property
    def __signature__(cls) -> inspect.Signature:
        own = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        above = inspect.signature(cls.__mro__[1].__init__).parameters  # type: ignore[misc]
        found = list_parameters(cls.__init__)  # type: ignore[misc]
        unpacked = {p.name for p in found} - set(own)  # the class above has their defaults
        return inspect.Signature([p.replace(default=above[p.name].default) if p.name in unpacked else p for p in found])
