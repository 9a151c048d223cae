"""Numbers with their nouns: "1 row", "3 rows"."""

from __future__ import annotations


def count(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun, such as "1 row" or "1,200 rows".

    Args:
        number: How many.
        noun: The noun in the singular.
        plural: Its plural; by default the noun with an "s".
    """
    digits = f"{number:,}" if isinstance(number, int) else f"{number:g}"
    return f"{digits} {noun if number == 1 else plural or noun + 's'}"
