"""Look up cells and kernels by name before anything is trained or timed."""

from __future__ import annotations

from collections.abc import Sequence

from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.kernels.registry import KERNELS


def find_cells(names: Sequence[str]) -> dict[str, type[Cell]]:
    """Return the cell class of every name; a name may also be FILE.py:CLASS.

    Raises:
        UserError: If a name is unknown or its file cannot be loaded.
    """
    cells = {}
    for name in names:
        try:
            cells[name] = find_cell(name)
        except ValueError:
            raise
        except Exception as error:  # a user's file may fail in any way
            raise UserError(f"cell {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return cells


def check_kernels(names: Sequence[str]) -> None:
    """Raise a UserError for a name that is not auto, a backend such as cpu, or the full name of a kernel."""
    known = ["auto", *dict.fromkeys(k.backend for k in KERNELS), *(k.name for k in KERNELS)]
    for name in [name for name in names if name not in known]:
        hint = suggest(name, known) or "`seqloom list kernels` shows them"
        raise UserError(f"there is no kernel {name!r}; {hint}")
