"""Cells by name or by place, found before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.cell import Cell, find


def cells(names: Sequence[str]) -> dict[str, type[Cell]]:
    """The cell of every name, or one error that says what is wrong."""
    found = {}
    for name in names:
        try:
            found[name] = find(name)
        except ValueError:
            raise
        except Exception as error:  # a person's own file may fail in any way
            raise ValueError(f"cell {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found
