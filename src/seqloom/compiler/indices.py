"""Sums of loop variables: where an element of a tensor comes from, through views, slices and permutations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Index(NamedTuple):
    """constant + sum of factor * loop variable."""

    constant: int = 0
    terms: tuple[tuple[str, int], ...] = ()  # (variable, factor), sorted

    def plus(self, other: Index, times: int = 1) -> Index:
        """Return self + times * other."""
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor * times
        terms = tuple(sorted((name, factor) for name, factor in factors.items() if factor))
        return Index(self.constant + times * other.constant, terms)

    def highest(self, loops: Mapping[str, int]) -> int:
        """Return the largest value, given the size of each loop."""
        return self.constant + sum(factor * (loops[name] - 1) for name, factor in self.terms)


ZERO = Index()


def variable(name: str) -> Index:
    """Return a loop variable as an index."""
    return Index(0, ((name, 1),))


def flatten(idx: Sequence[Index], sizes: Sequence[int]) -> Index:
    """Return the offset of an element in a contiguous tensor of these sizes."""
    total = ZERO
    for i, size in zip(idx, sizes, strict=True):
        total = ZERO.plus(total, size).plus(i)
    return total


def unflatten(total: Index, sizes: Sequence[int], loops: Mapping[str, int]) -> tuple[Index, ...] | None:
    """Return the element at an offset in a contiguous tensor of these sizes; None if that needs a division."""
    idx = []
    for size in reversed(sizes):
        if size == 1:
            idx.append(ZERO)
            continue
        rest = Index(total.constant % size, tuple((n, k) for n, k in total.terms if k % size))
        if rest.highest(loops) >= size:
            return None
        idx.append(rest)
        total = Index(total.constant // size, tuple((n, k // size) for n, k in total.terms if k % size == 0))
    return tuple(reversed(idx))
