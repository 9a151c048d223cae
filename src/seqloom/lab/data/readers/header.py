"""The header of a table: whether the first row is one, and titles above it."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]
MOST_TITLES = 10  # rows with a title above the header


def is_data(first: Sequence[str], rows: Rows) -> bool:
    """Return whether the first row is data and no header: a field is a number, or occurs again in its column.

    Rows that repeat the whole first row do not count.
    """
    values = [set(column) - {""} for column in zip(*(row for row in rows if row != first), strict=False)]
    return any(map(_is_number, first)) or any(field in seen for field, seen in zip(first, values, strict=False))


def count_titles(rows: Rows) -> int:
    """Return the number of rows with a single text above the header of a table with several fields.

    Args:
        rows: The first rows that have a value.
    """
    titles = next((i for i, row in enumerate(rows) if any(map(str.strip, row[1:]))), 0)
    if not 0 < titles <= MOST_TITLES or not all(row[0].strip() for row in rows[:titles]):
        return 0
    names, below = rows[titles], rows[titles + 1 :]
    is_header = all(map(str.strip, names)) and len(set(names)) == len(names) and not is_data(names, below)
    is_table = len(below) > 1 and all(len(row) == len(names) for row in below[:-1])  # the last may be cut
    return titles if is_header and is_table else 0


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True
