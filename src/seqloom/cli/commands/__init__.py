"""Exit codes, the --json option and the warning format that all commands share."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Annotated, ParamSpec, TypeVar

from cyclopts import Parameter

from seqloom.lab import console

SOME_FAILED = 3  # exit code of predict if some rows have an error instead of a result
INTERRUPTED = 130  # exit code after Ctrl-C, as shells define it: 128 + SIGINT


def _format_default(value: object) -> str | None:
    """Format a default for the help: a list as its flag expects it, nothing for "off" or "none"."""
    if isinstance(value, tuple | list):
        value = ",".join(map(str, value))
    if value is None or value is False or value == "":
        return None
    return "on" if value is True else str(value)


DEFAULTS = Parameter(negative="", show_default=_format_default)  # for every parameter of every command
HIDDEN = Parameter(show=False)  # an option of an earlier release that another has replaced; it still works
Json = Annotated[bool, Parameter(help="Print one JSON document instead of tables.")]

P = ParamSpec("P")
R = TypeVar("R")


def print_warnings(command: Callable[P, R]) -> Callable[P, R]:
    """Wrap a command so that each warning is one line on stderr, without a source location."""

    @functools.wraps(command)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: console.note(f"warning: {message}")
            return command(*args, **kwargs)

    return wrapper
