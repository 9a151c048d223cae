"""Check that a step treats the rows of a batch independently: torch runs parts of it for all steps at once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from seqloom.compiler.moves import keeps_rows
from seqloom.compiler.nodes import (
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
