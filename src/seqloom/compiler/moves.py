"""Indices through moves: which element of its operand an element of a view, slice or concatenation is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx

from seqloom.compiler.indices import ZERO, Index, flatten, unflatten
from seqloom.compiler.nodes import COPIES, PIECES, VIEWS, batch, name_of, operands, row, shape


class StraddleError(Exception):
    """A loop must be cut, because one index crosses from a piece of a concatenation into the next."""

    def __init__(self, name: str, at: int) -> None:
        self.name, self.at = name, at


class NeedsBufferError(Exception):
    """A node must be written to memory, because its elements are moved in a way that indices cannot follow."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node


def follow(n: fx.Node, idx: Sequence[Index], loops: Mapping[str, int]) -> tuple[fx.Node | float, tuple[Index, ...]]:
    """Return the element of its operand that an element of a move is, or 0.

    Args:
        n: The move.
        idx: The element, one index per dimension of the node's row.
        loops: The sizes of the loops.

    Raises:
        StraddleError: If iterations of one loop lie in different pieces.
        NeedsBufferError: If the index cannot be written as a sum of loop variables.
    """
    name, a = name_of(n), operands(n)[0]
    if name in PIECES:
        return _find_piece(n, idx, loops)
    if name == "getitem":
        return _follow_getitem(n, idx)
    sizes = row(a)
    rank = len(sizes)
    if name in COPIES:
        return a, tuple(idx)
    if name in VIEWS:
        if not keeps_rows(n):
            raise NeedsBufferError(n)
        to = unflatten(flatten(idx, row(n)), sizes, loops)
        if to is None:
            raise NeedsBufferError(a)
        return a, to
    if name == "permute":
        moved = [ZERO] * rank
        for i, d in enumerate(operands(n)[1]):
            moved[d % rank] = idx[i]
        return a, tuple(moved)
    if name == "transpose":
        moved, (p, q) = list(idx), (d % rank for d in operands(n)[1:3])
        moved[p], moved[q] = moved[q], moved[p]
        return a, tuple(moved)
    if name == "expand":
        return a, broadcast(a, idx)
    if name == "slice":
        settings: list[Any] = [0, 0, None, 1]
        settings[: len(operands(n)) - 1] = operands(n)[1:]
        dim, start, _, step = settings
        dim, start = dim % rank, start or 0
        start = max(0, start + shape(a)[dim]) if start < 0 else start
        return a, (*idx[:dim], Index(start).plus(idx[dim], step), *idx[dim + 1 :])
    if name == "select":
        dim, i = operands(n)[1] % rank, operands(n)[2]
        return a, (*idx[:dim], Index(i % shape(a)[dim]), *idx[dim:])
    raise NeedsBufferError(n)


def keeps_rows(n: fx.Node) -> bool:
    """Return whether a view keeps the elements of each row in their order."""
    d, e = batch(n), batch(operands(n)[0])
    return d is None or (e is not None and math.prod(row(n)[:d]) == math.prod(row(operands(n)[0])[:e]))


def _follow_getitem(n: fx.Node, idx: Sequence[Index]) -> tuple[fx.Node, tuple[Index, ...]]:
    parts, i = operands(n)
    if name_of(parts) not in ("unbind", "split", "split_with_sizes"):
        raise NeedsBufferError(n)
    a = operands(parts)[0]
    if name_of(parts) == "unbind":
        dim = (*operands(parts)[1:], 0)[0] % len(row(a))
        return a, (*idx[:dim], Index(i), *idx[dim:])
    dim = (*operands(parts)[2:], 0)[0] % len(row(a))
    start = sum(v.shape[dim] for v in parts.meta["val"][:i])
    return a, (*idx[:dim], idx[dim].plus(Index(start)), *idx[dim + 1 :])


def _find_piece(
    n: fx.Node, idx: Sequence[Index], loops: Mapping[str, int]
) -> tuple[fx.Node | float, tuple[Index, ...]]:
    """Return the part of a concatenation that an element lies in, or 0."""
    name, sizes = name_of(n), row(n)
    pieces: list[tuple[fx.Node | float, int]]
    if name == "cat":
        dim = (*operands(n)[1:], 0)[0] % len(sizes)
        pieces = [(p, row(p)[dim]) for p in operands(n)[0] if math.prod(row(p))]
    elif name == "slice_backward":
        g, whole, dim, start, _, step = operands(n)
        if step != 1:
            raise NeedsBufferError(n)
        dim %= len(sizes)
        start = max(0, start + whole[dim]) if start < 0 else start
        width = row(g)[dim]
        pieces = [(0.0, start), (g, width), (0.0, sizes[dim] - start - width)]
    else:
        g, whole, dim, i = operands(n)
        dim %= len(sizes)
        i %= whole[dim]
        pieces = [(0.0, i), (g, 1), (0.0, sizes[dim] - i - 1)]
    at = 0
    for piece, width in pieces:
        here = idx[dim].plus(Index(-at))
        if width and here.constant < width:
            if here.highest(loops) >= width:
                if len(here.terms) != 1:
                    raise NeedsBufferError(n)
                ((loop, factor),) = here.terms
                raise StraddleError(loop, -(-(width - here.constant) // factor))
            if not isinstance(piece, fx.Node):
                return 0.0, ()
            if name == "select_backward":
                return piece, (*idx[:dim], *idx[dim + 1 :])
            return piece, (*idx[:dim], here, *idx[dim + 1 :])
        at += width
    raise AssertionError("an index outside of its node")


def broadcast(a: fx.Node, idx: Sequence[Index]) -> tuple[Index, ...]:
    """Return the element of an operand that takes part in an element of a pointwise result."""
    sizes, full = row(a), shape(a)
    skipped = len(idx) - len(sizes)
    return tuple(ZERO if v == 1 and full[i] == 1 else idx[skipped + i] for i, v in enumerate(sizes))
