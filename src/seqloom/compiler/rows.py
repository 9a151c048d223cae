"""Check that a step treats the rows of a batch independently: torch runs parts of it for all steps at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from seqloom.compiler.moves import keeps_rows
from seqloom.compiler.nodes import (
    ROWS,
    VIEWS,
    UnsupportedError,
    batch,
    check_known,
    kind,
    line_of,
    name_of,
    operands,
    reduced_dims,
    shape,
)

# Operators that no loop runs, but that torch may run before or after one, along the dimension in their second argument
ALONG = {"cumsum", "prod", "var", "flip", "gather", "index_select", "roll"}


def check_rows(graph: fx.Graph, gradients: Sequence[fx.Node]) -> None:
    """Check the nodes of a joint graph that compute the step itself.

    Args:
        graph: The graph.
        gradients: The placeholders of the gradients of the results; nodes that need them are right if the step is.

    Raises:
        UnsupportedError: If rows are combined, or an operator is unknown.
    """
    reached = set(gradients)
    for n in graph.nodes:
        if any(a in reached for a in n.all_input_nodes):
            reached.add(n)
        elif n.op == "call_function":
            _check_node(n)


_LINEAR = {"add", "sub", "neg", "sum", "_to_copy"}  # of all their arguments
_BILINEAR = {"mul", "mm", "bmm"}  # linear in each of two arguments


def check_own_derivatives(graph: fx.Graph, gradients: Sequence[fx.Node]) -> None:
    """Check the nodes of a joint graph that need the gradients of the results, where users have written them.

    Gradients may be added up over the rows, as that of a weight is, if what follows is linear: sums over the rows of
    all steps are computed at once.

    Args:
        graph: The graph.
        gradients: The placeholders of the gradients of the results.

    Raises:
        UnsupportedError: If rows are combined in another way.
    """
    reached, totals = set(gradients), set[fx.Node]()
    for n in graph.nodes:
        if n.op == "call_function" and kind(n) not in ("move", "constant"):
            numbers = [a for a in (*operands(n), *n.kwargs.values()) if isinstance(a, int) and a]
            if any(a % ROWS == 0 for a in numbers):
                raise UnsupportedError(f"step computes with the batch size{line_of(n)}")
        if n.op != "call_function" or not any(a in reached for a in n.all_input_nodes):
            continue
        reached.add(n)
        if not _treats_rows_alone(n, totals):
            raise UnsupportedError(f"the backward of a function combines rows of the batch by {name_of(n)}{line_of(n)}")


def _treats_rows_alone(n: fx.Node, totals: set[fx.Node]) -> bool:
    """Return whether a node combines no rows but in a sum; such sums are added to `totals`."""
    try:
        d = batch(n)
    except UnsupportedError:
        return False
    name, rows = name_of(n), [a for a in n.all_input_nodes if batch(a) is not None]
    summed = [a for a in n.all_input_nodes if a in totals]
    if summed:
        totals.add(n)
        is_linear = name in _LINEAR or (name in _BILINEAR and len(summed) == 1)
        is_linear |= name == "div" and summed == [operands(n)[0]]
        return d is None and not rows and (is_linear or kind(n) == "move")
    if rows and d is None:
        totals.add(n)
        return name in ("sum", "mm", "bmm")
    return not rows or not ((name in VIEWS and not keeps_rows(n)) or batch(rows[0]) in _dims(n, name))


def _check_node(n: fx.Node) -> None:
    try:
        batch(n)
    except UnsupportedError:
        raise UnsupportedError(f"step combines rows of the batch by {name_of(n)}{line_of(n)}") from None
    rows = [a for a in n.all_input_nodes if batch(a) is not None]
    if not rows:
        if kind(n) == "unknown" and name_of(n) not in {*ALONG, "arange", "embedding", "tril", "triu"}:
            check_known(n)
        return
    name, first = name_of(n), batch(rows[0])
    if kind(n) == "sum" and first in reduced_dims(n):
        raise UnsupportedError(f"step sums over the batch{line_of(n)}")
    if kind(n) == "unknown" and name not in {*ALONG, "embedding"}:
        check_known(n)
    meets = batch(n) is None or (name in VIEWS and not keeps_rows(n)) or first in _dims(n, name)
    if meets:
        raise UnsupportedError(f"step combines rows of the batch by {name}{line_of(n)}")


def _dims(n: fx.Node, name: str) -> list[int]:
    """Return the dimensions along which a node combines, selects or joins elements."""
    if name == "getitem" or name not in {*ALONG, "cat", "split", "split_with_sizes", "unbind", "slice", "select"}:
        return []
    a = operands(n)[0]
    a = a[0] if isinstance(a, (list, tuple)) else a
    position = 2 if name in ("split", "split_with_sizes", "roll") else 1
    dims = operands(n)[position] if len(operands(n)) > position else 0
    rank = len(shape(a))
    along = [d % rank for d in (dims if isinstance(dims, (list, tuple)) else [dims or 0])]
    if name == "slice":
        return [d for d in along if shape(a)[d] != shape(n)[d]]
    return along
