"""Find a cell class by its registered name or in a user's file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from seqloom.core.cell import Cell
from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.plurals import list_some
from seqloom.core.suggest import suggest

_loaded: dict[str, type[Cell]] = {}  # cells that `load_source` has loaded, by file.py:name


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
        return _loaded[cell]
    if ".py:" in cell:
        return _load_file(*cell.rsplit(":", 1))
    known = f"known cells: {list_some(sorted(Cell.registry))}, or FILE.py:CLASS; `seqloom list cells` has all"
    raise UserError(f"unknown cell {cell!r}; {' '.join(filter(None, (suggest(cell, Cell.registry), known)))}")


def _load_file(path: str, name: str) -> type[Cell]:
    file = Path(path)
    if not file.is_file():
        raise UserError(
            f"cell {path + ':' + name!r}: there is no file {path!r}; write FILE.py:CLASS with a path from this folder"
        )
    return _load_text(file.read_bytes(), file, name)


def _load_text(code: bytes, file: Path, name: str) -> type[Cell]:
    """Execute the source code of a module and return its cell class of this name."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(code, str(file), "exec"), vars(module))
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Cell)):
        cells = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Cell) and v is not Cell]
        raise UserError(f"{str(file)!r} has no cell {name!r}; it has: {', '.join(cells) or 'none'}")
    return kind


def load_source(code: bytes, file: Path, name: str) -> str:
    """Execute source code that the caller has checked, and return the name by which `find_cell` finds its cell.

    Args:
        code: The source code of a Python module.
        file: Its path, for tracebacks. The file is not read.
        name: The name of the cell class.

    Returns:
        `file.py:name`.
    """
    place = f"{file}:{name}"
    _loaded[place] = _load_text(code, file, name)
    return place
