"""Create a cell of a layer from the layer's settings."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from seqloom.core.cell import Cell
from seqloom.core.errors import UserTypeError
from seqloom.core.heads import HeadsCell
from seqloom.core.suggest import suggest


def make_cell(
    kind: type[Cell], input_size: int, hidden_size: int, settings: dict[str, Any], common: Sequence[str]
) -> Cell:
    """Return a cell; `heads` divides its units, unless `heads` is a setting of the cell itself.

    Args:
        kind: The cell's class.
        input_size: Number of input features.
        hidden_size: Number of units.
        settings: Settings of the cell by name.
        common: Settings of every layer, for the hint in the error.

    Raises:
        UserTypeError: If the cell has no such setting.
    """
    known = [n for n in inspect.signature(kind.__init__).parameters if n not in ("self", "input_size", "hidden_size")]
    heads = settings.get("heads", 1) if "heads" not in known else 1
    settings = {name: value for name, value in settings.items() if name != "heads" or "heads" in known}
    wrong = [n for n in settings if n not in known]
    if wrong:
        hint = suggest(wrong[0], [*known, *common]) or f"it has: {', '.join(known) or 'none'}"
        raise UserTypeError(f"cell {kind.name or kind.__name__!r} has no setting {wrong[0]!r}; {hint}")
    if heads == 1:
        return kind(input_size, hidden_size, **settings)
    return HeadsCell(kind, input_size, hidden_size, heads, **settings)
