"""Class names that are probably misspelt."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

SHORTEST = 4  # letters of a name; shorter ones often differ in one letter
LEAST_RATIO = 20  # how much more frequent the correct name must be


def find_typos(rows: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return pairs of a rare class and a frequent one whose names differ by one letter.

    Args:
        rows: The number of rows of each class.

    Example:
        >>> find_typos({"negative": 120, "negativr": 2, "positive": 130})
        [('negativr', 'negative')]
    """
    frequent = sorted((name for name, n in rows.items() if n >= LEAST_RATIO), key=rows.__getitem__, reverse=True)
    pairs = []
    for name, n in rows.items():
        likely = (other for other in frequent if 0 < n * LEAST_RATIO <= rows[other] and is_edited(name, other))
        pairs += [(name, other) for other in islice(likely, 1)]
    return pairs


def is_edited(name: str, other: str) -> bool:
    """Return whether one letter was left out, added or replaced, or two neighbours swapped; digits are no typos."""
    if min(len(name), len(other)) < SHORTEST or abs(len(name) - len(other)) > 1 or name == other:
        return False
    at = next((i for i in range(min(len(name), len(other))) if name[i] != other[i]), min(len(name), len(other)))
    a, b = name[at:], other[at:]
    if any(letter.isdigit() for letter in a[:1] + b[:1]):
        return False
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[1::-1] and a[2:] == b[2:])
