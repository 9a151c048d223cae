"""Spans of tagged sequences, and their F1, by conlleval's rules."""

from __future__ import annotations

from collections.abc import Sequence

STARTS, ENDS = frozenset("OBSU"), frozenset("ELSU")  # a tag that starts a new span, and one after which a span ends


def find_spans(tags: Sequence[str]) -> set[tuple[int, int, str]]:
    """Return the spans (start, end, kind) of a row of tags by conlleval's rules.

    I- after O or after another kind starts a span too. E- and L- end a span; S- and U- are spans of one step.
    """
    spans, start, kind, before = set(), 0, "", "O"
    for t, tag in enumerate([*tags, "O"]):
        prefix, _, now = tag.partition("-")
        if kind and (prefix in STARTS or before in ENDS or now != kind):
            spans.add((start, t, kind))
            kind = ""
        if prefix != "O" and not kind:
            start, kind = t, now
        before = prefix
    return spans


def count_spans(true: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return how many spans of one row are correct, predicted and true."""
    there, claimed = find_spans(true), find_spans(predicted)
    return len(there & claimed), len(claimed), len(there)
