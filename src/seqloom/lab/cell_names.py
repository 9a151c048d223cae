"""Cells by name or by place, and kernels by name, found before anything is trained or timed."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.kernels.registry import KERNELS


def find_cells(names: Sequence[str]) -> dict[str, type[Cell]]:
    """The cell of every name, or one error that says what is wrong."""
    found = {}
    for name in names:
        try:
            found[name] = find_cell(name)
        except ValueError:
            raise
        except Exception as error:  # a person's own file may fail in any way
            raise UserError(f"cell {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def check_kernels(names: Sequence[str]) -> None:
    """Raise where one is no kernel of any cell: neither auto, nor a backend such as cpu, nor a full name."""
    known = ["auto", *dict.fromkeys(k.backend for k in KERNELS), *(k.name for k in KERNELS)]
    for name in [name for name in names if name not in known]:
        hint = suggest(name, known) or "`seqloom list kernels` names them"
        raise UserError(f"there is no kernel {name!r}; {hint}")
