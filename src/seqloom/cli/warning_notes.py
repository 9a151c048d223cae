"""Warnings as a command tells them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from seqloom.lab import console

P = ParamSpec("P")
R = TypeVar("R")


def warned(command: Callable[P, R]) -> Callable[P, R]:
    """The command, its warnings one line each on stderr and without a place in the code."""

    @functools.wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> R:
        with warnings.catch_warnings():
            warnings.simplefilter("default", UserWarning)
            warnings.showwarning = lambda message, *_, **__: console.note(f"warning: {message}")
            return command(*args, **kwargs)

    return told
