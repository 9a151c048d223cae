"""Format numbers with their nouns ("1 row", "3 rows") and short lists of names."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 row" or "1,200 rows".

    Args:
        number: How many.
        noun: The noun in the singular.
        plural: Its plural; by default the noun with an "s".
    """
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun if number == 1 else plural or noun + 's'}"


def shorten(text: str, most: int = 80) -> str:
    """Return a text for a message, cut to a number of characters.

    Args:
        text: The text.
        most: The maximum number of characters, including the dots.
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def list_some(names: Sequence[str], most: int = 12) -> str:
    """Join names with commas; of many, only the first ones, and how many more there are.

    Args:
        names: The names.
        most: How many to write.
    """
    more = len(names) - most
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:most])} and {more:,} more"


def join_choices(values: Sequence[object]) -> str:
    """Return values as "1", "1 or 2" or "1, 2 or 4"."""
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last
