"""Chunks in a row of tags, and how many of them were found."""

from __future__ import annotations

from collections.abc import Sequence

FIRST, LAST = frozenset("OBSU"), frozenset("ELSU")  # no chunk goes on into the ones, nor on from the others


def spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Chunks (from, to, kind) by conlleval's rules: I- after O or after another kind begins a chunk too.

    E- and L- are the last of a chunk, S- and U- are a chunk by themselves.
    """
    found, start, kind, before = set(), 0, "", "O"
    for t, tag in enumerate([*tags, "O"]):
        what, _, now = tag.partition("-")
        if kind and (what in FIRST or before in LAST or now != kind):
            found.add((start, t, kind))
            kind = ""
        if what != "O" and not kind:
            start, kind = t, now
        before = what
    return found


def counts(right: Sequence[str], said: Sequence[str]) -> tuple[int, int, int]:
    """Of one row: chunks that were found, that were said, that are there."""
    there, claimed = spans(right), spans(said)
    return len(there & claimed), len(claimed), len(there)


def span_f1(right: Sequence[Sequence[str]], said: Sequence[Sequence[str]]) -> float:
    """2 found / (said + there), between 0 and 1."""
    rows = [counts(r, s) for r, s in zip(right, said, strict=True)]
    found, claimed, there = (sum(row[i] for row in rows) for i in range(3))
    return 2 * found / max(1, claimed + there)
