"""Suggestions for misspelt names: "did you mean ...?"."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MIN_SIMILARITY = 0.5  # from 0 to 1, ignoring case and hyphens


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as "did you mean 'gru'?", or "" if no known name is similar.

    Args:
        name: The unknown name.
        known: The valid names.
    """
    names = list(known)
    similar = get_close_matches(name, names) or get_close_matches(
        name.lower().replace("-", "_"), names, cutoff=MIN_SIMILARITY
    )
    swapped = [other for other in similar if sorted(other) == sorted(name)]  # the same letters in another order
    return f"did you mean {(swapped or similar)[0]!r}?" if similar else ""
