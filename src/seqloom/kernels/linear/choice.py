"""Record which kernel each linear recurrence chose, for `explain`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class LinearChoice:
    """The chosen kernel, what it does in one phrase, and why each faster one was rejected."""

    name: str
    detail: str = ""
    rejected: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        first = f"{self.name} ({self.detail})" if self.detail else self.name
        return "".join([first, *(f"\n  not {name}: {reason}" for name, reason in self.rejected)])


class _Notes(threading.local):
    choices: list[LinearChoice] | None = None


_notes = _Notes()


def note(choice: LinearChoice) -> None:
    """Add a choice to the list of the current `record_choices`, if there is one."""
    if _notes.choices is not None:
        _notes.choices.append(choice)


def is_recording() -> bool:
    """Return whether a `record_choices` is active."""
    return _notes.choices is not None


@contextmanager
def record_choices() -> Iterator[list[LinearChoice]]:
    """Collect the kernels of all linear recurrences that run inside, in order."""
    before, _notes.choices = _notes.choices, []
    try:
        yield _notes.choices
    finally:
        _notes.choices = before
