"""Find a cell class by its registered name or in a user's file."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from seqloom.core.cell import Cell
from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.plurals import list_some
from seqloom.core.suggest import suggest

# A path without a real folder: no files can be beside it.
NOWHERE = os.path.join(os.path.abspath(os.devnull), "cell.py")


class _Loaded(NamedTuple):
    kind: type[Cell]
    code: bytes


_loaded: dict[str, _Loaded] = {}  # cells that `load_source` has executed, by FILE.py:CLASS


def split_name(cell: str) -> tuple[Path, str] | None:
    """Split FILE.py:CLASS into the file and the name of the class; None for the name of a layer or cell.

    Everything that reads, checks or executes a cell's file gets its path from this function.

    Raises:
        UserError: If the name contains ".py:" and is not FILE.py:CLASS.
    """
    file, _, name = cell.rpartition(":")
    if file.endswith(".py") and name.isidentifier() and file.isprintable():
        return Path(file), name
    if ".py:" in cell:
        raise UserError(f"cell {cell!r}: write FILE.py:CLASS, a Python file and the name of a class in it")
    return None


def find_cell(cell: str | type[Cell]) -> type[Cell]:
    """Return a cell class.

    Args:
        cell: The class itself, its registered name, or `path/to/file.py:MyCell`. That file is executed.

    Raises:
        UserError: If there is no such cell; with a suggestion.
        UserTypeError: If `cell` is neither a string nor a cell class.
    """
    if isinstance(cell, type) and issubclass(cell, Cell):
        return cell
    if not isinstance(cell, str):
        raise UserTypeError(f"cell must be a name or a subclass of seqloom.Cell, got {cell!r}")
    if cell in Cell.registry:
        return Cell.registry[cell]
    if cell in _loaded:
        return _loaded[cell].kind
    if (place := split_name(cell)) is not None:
        file, name = place
        return _execute(_read(file, name), file, name, str(file))
    known = f"known cells: {list_some(sorted(Cell.registry))}, or FILE.py:CLASS; `seqloom list cells` has all"
    raise UserError(f"unknown cell {cell!r}; {' '.join(filter(None, (suggest(cell, Cell.registry), known)))}")


def read_source(cell: str) -> tuple[Path, bytes] | None:
    """Return the absolute path and the source code of FILE.py:CLASS; None for the name of a layer or cell.

    Code that `load_source` has executed under this name is not read again.
    """
    place = split_name(cell)
    if place is None:
        return None
    file, name = place
    return file.absolute(), _loaded[cell].code if cell in _loaded else _read(file, name)


def load_source(code: bytes, file: Path, name: str) -> str:
    """Execute source code that the caller has checked, and return the name by which `find_cell` finds its cell.

    The module's `__file__` is not a path in the folder of the file, so code that adds that folder to sys.path or reads
    files beside `__file__` finds nothing there: only the text that was checked is executed.

    Args:
        code: The source code of a Python module.
        file: Its path, for tracebacks. The file is not read.
        name: The name of the cell class.

    Returns:
        `FILE.py:CLASS`.

    Raises:
        UserError: If the code cannot be executed, or does not define the class.
    """
    try:
        kind = _execute(code, file, name, NOWHERE)
    except UserError:
        raise
    except Exception as error:  # the code may fail in any way
        raise UserError(f"cell {name!r} cannot be loaded from {file}: {type(error).__name__}: {error}") from error
    place = f"{file}:{name}"
    _loaded[place] = _Loaded(kind, code)
    return place


def _read(file: Path, name: str) -> bytes:
    if not file.is_file():
        place = f"{file}:{name}"
        raise UserError(
            f"cell {place!r}: there is no file {str(file)!r}; write FILE.py:CLASS with a path from this folder"
        )
    return file.read_bytes()


def _execute(code: bytes, file: Path, name: str, place: str) -> type[Cell]:
    """Execute the source code of a module whose `__file__` is `place`; return its cell class of this name."""
    module = ModuleType(file.stem)
    module.__file__ = place
    exec(compile(code, str(file), "exec", dont_inherit=True), vars(module))
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Cell)):
        cells = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Cell) and v is not Cell]
        raise UserError(f"{str(file)!r} has no cell {name!r}; it has: {', '.join(cells) or 'none'}")
    return kind
