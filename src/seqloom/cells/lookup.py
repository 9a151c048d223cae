"""Find a cell class by its registered name, or in a person's own file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from seqloom.core.cell import Cell
from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.suggest import suggest

_by_place: dict[str, type[Cell]] = {}  # cells that `load_source` has loaded


def find_cell(cell: str | type[Cell]) -> type[Cell]:
    """Return a cell class: itself, by its registered name, or from a file as `path/to/file.py:MyCell`."""
    if isinstance(cell, type) and issubclass(cell, Cell):
        return cell
    if not isinstance(cell, str):
        raise UserTypeError(f"cell must be a name or a subclass of seqloom.Cell, got {cell!r}")
    if cell in Cell.registry:
        return Cell.registry[cell]
    if cell in _by_place:
        return _by_place[cell]
    if ".py:" in cell:
        return _from_file(*cell.rsplit(":", 1))
    known = f"there are: {', '.join(sorted(Cell.registry))}, or FILE.py:CLASS"
    raise UserError(f"unknown cell {cell!r}; {' '.join(filter(None, (suggest(cell, Cell.registry), known)))}")


def _from_file(path: str, name: str) -> type[Cell]:
    file = Path(path)
    if not file.is_file():
        raise UserError(f"cell {path + ':' + name!r}: there is no file {path!r}")
    return _from_text(file.read_bytes(), file, name)


def _from_text(code: bytes, file: Path, name: str) -> type[Cell]:
    """Execute the source code of a module and return its cell class of this name."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(code, str(file), "exec"), vars(module))
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, Cell)):
        cells = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Cell) and v is not Cell]
        raise UserError(f"{str(file)!r} has no cell {name!r}; it has: {', '.join(cells) or 'none'}")
    return found


def load_source(code: bytes, file: Path, name: str) -> str:
    """Execute source code that was checked, and return the name under which `find` then finds its cell.

    Args:
        code: The source code of a Python module.
        file: Its file, for tracebacks. It is not read again.
        name: The cell's class.

    Returns:
        `file.py:name`.
    """
    place = f"{file}:{name}"
    _by_place[place] = _from_text(code, file, name)
    return place
