"""Rewrites of a traced step: move work out of the loop, and remove copies."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from seqloom.compiler.nodes import ROWS, VIEWS, constant_value, kind, name_of, operands, shape

aten = torch.ops.aten


def _late_nodes(graph: fx.Graph, late: set[int]) -> tuple[list[fx.Node], set[fx.Node]]:
    """Return the placeholders, and every node that needs a state."""
    holders = [n for n in graph.nodes if n.op == "placeholder"]
    reached = {holders[i] for i in late}
    for n in graph.nodes:
        if any(a in reached for a in n.all_input_nodes):
            reached.add(n)
    return holders, reached


MOST_CONSTANTS = 64  # numbers of a tensor that a step writes down, as by torch.tensor([...])


def embed_constants(module: fx.GraphModule) -> None:
    """Write the numbers of small tensors that a step creates into the graph."""
    graph = module.graph
    for n in list(graph.nodes):
        source = operands(n)[0] if n.target is aten.lift_fresh_copy.default else None
        if not isinstance(source, fx.Node) or source.op != "get_attr":
            continue
        value: torch.Tensor = getattr(module, str(source.target))
        if value.numel() > MOST_CONSTANTS or value.dtype.is_complex:
            continue
        like, dtype = n.meta["val"], value.dtype
        with graph.inserting_before(n):
            if value.dim() == 0:
                new = _add(graph, aten.full.default, ([], value.item()), {"dtype": dtype}, like)
            else:
                numbers = value.flatten().tolist()
                one, flat = like.new_empty(1), like.new_empty(len(numbers))
                parts = [_add(graph, aten.full.default, ([1], v), {"dtype": dtype}, one) for v in numbers]
                new = _add(graph, aten.cat.default, (parts,), {}, flat)
                new = _add(graph, aten.view.default, (new, list(value.shape)), {}, like)
        n.replace_all_uses_with(new)
        graph.erase_node(n)
        if not source.users:
            graph.erase_node(source)
    module.recompile()


def _add(graph: fx.Graph, target: Any, args: tuple[Any, ...], named: dict[str, Any], value: torch.Tensor) -> fx.Node:  # noqa: ANN401
    new = graph.call_function(target, args, named)
    new.meta["val"] = value
    return new


def split_concatenations(plain: fx.GraphModule, late: set[int]) -> bool:
    """Rewrite W [x, h] as W_x x + W_h h where x needs no state and h does; return whether anything changed."""
    graph, is_changed = plain.graph, False
    _, reached = _late_nodes(graph, late)
    for n in list(graph.nodes):
        joined = operands(n)[0] if n.target is aten.mm.default else None
        if (
            joined is None
            or joined.target is not aten.cat.default
            or len({p in reached for p in operands(joined)[0]}) < 2
        ):
            continue
        if joined.meta["val"].dim() != 2 or (*operands(joined)[1:], 0)[0] not in (1, -1):
            continue
        with graph.inserting_before(n):
            total, at = None, 0
            for piece in operands(joined)[0]:
                end = at + piece.meta["val"].shape[1]
                part = graph.call_function(aten.slice.Tensor, (operands(n)[1], 0, at, end))
                term, at = graph.call_function(aten.mm.default, (piece, part)), end
                total = term if total is None else graph.call_function(aten.add.Tensor, (total, term))
        assert total is not None
        total.meta["val"] = n.meta["val"]  # it may be part of a later concatenation
        n.replace_all_uses_with(total)
        is_changed = True
    graph.eliminate_dead_code()
    plain.recompile()
    return is_changed


def gather_early_terms(plain: fx.GraphModule, late: set[int]) -> None:
    """Rewrite x + U h + b as (x + b) + U h, so that terms without a state are added before the loop."""
    graph = plain.graph
    _, reached = _late_nodes(graph, late)

    def is_sum(n: fx.Node) -> bool:
        return n.target is aten.add.Tensor and not n.kwargs and all(isinstance(a, fx.Node) for a in operands(n))

    def terms(n: fx.Node, whole: torch.Size, top: bool = False) -> list[fx.Node]:
        if is_sum(n) and (top or (len(n.users) == 1 and n.meta["val"].shape == whole)):
            return [t for a in operands(n) for t in terms(a, whole)]
        return [n]

    for n in list(graph.nodes):
        if n not in reached or not is_sum(n) or any(is_sum(u) for u in n.users):
            continue
        whole = n.meta["val"].shape
        every = terms(n, whole, True)
        early, rest = [t for t in every if t not in reached], [t for t in every if t in reached]
        wide = [t for t in early if t.meta["val"].dim() and ROWS in t.meta["val"].shape]
        if len(early) < 2 or not rest or not wide or any(t.meta["val"].shape != whole for t in rest):
            continue
        with graph.inserting_before(n):
            sums = []
            for part in ([*wide, *(t for t in early if t not in wide)], rest):
                total = part[0]
                for t in part[1:]:
                    value = torch.broadcast_tensors(total.meta["val"], t.meta["val"])[0]
                    total = graph.call_function(aten.add.Tensor, (total, t))
                    total.meta["val"] = value
                sums.append(total)
            new = graph.call_function(aten.add.Tensor, tuple(sums))
            new.meta["val"] = n.meta["val"]
        n.replace_all_uses_with(new)
    graph.eliminate_dead_code()
    plain.recompile()


def read_pieces(graph: fx.Graph) -> None:
    """Read parts of concatenations directly from their sources.

    The derivative of a split is a sum of concatenations with zeros, and that of a concatenation cuts it into slices.
    """
    for n in list(graph.nodes):
        joined = _merge_padded(n)
        if joined is not None:
            n.replace_all_uses_with(joined)
            continue
        piece = _find_piece(n)
        if piece is None:
            continue
        if shape(piece) != shape(n):
            with graph.inserting_before(n):
                value = piece.meta["val"].reshape(shape(n))
                piece = graph.call_function(aten.view.default, (piece, list(shape(n))))
                piece.meta["val"] = value
        n.replace_all_uses_with(piece)
    graph.eliminate_dead_code()


def _merge_padded(n: fx.Node) -> fx.Node | None:
    """Return a new node [a, b] for [a, 0] + [0, b]; None if n is something else."""
    if n.target is not aten.add.Tensor or n.kwargs or len(operands(n)) != 2:
        return None
    if not all(isinstance(a, fx.Node) and a.target is aten.cat.default for a in operands(n)):
        return None
    left, right = operands(n)
    if _cat_dim(left) != _cat_dim(right) or shape(left) != shape(right):
        return None
    pieces = []
    for a, b in zip(operands(left)[0], operands(right)[0], strict=False):
        if shape(a) != shape(b) or not (_is_zeros(a) or _is_zeros(b)):
            return None
        pieces.append(b if _is_zeros(a) else a)
    if len(pieces) != len(operands(left)[0]):
        return None
    with n.graph.inserting_before(n):
        joined = n.graph.call_function(aten.cat.default, (pieces, _cat_dim(left)))
    joined.meta["val"] = n.meta["val"]
    return joined


def _is_zeros(n: fx.Node) -> bool:
    return n.op == "call_function" and kind(n) == "constant" and constant_value(n) == 0


def _cat_dim(n: fx.Node) -> int:
    return (*operands(n)[1:], 0)[0] % len(shape(n))


def _find_piece(n: fx.Node) -> fx.Node | None:
    """Return the part of a concatenation that a node slices out, even through views that add or drop dimensions of 1.

    None if it slices out something else.
    """
    cut = _find_cut(n)
    if cut is None:
        return None
    source, dim, low, high = cut
    before = [v for v in shape(source)[:dim] if v > 1]  # the other dimensions that views must keep
    behind = [v for v in shape(source)[dim + 1 :] if v > 1]
    while name_of(source) in VIEWS and isinstance(operands(source)[0], fx.Node):
        source = operands(source)[0]
        if source.op != "call_function":
            return None
    if source.target is not aten.cat.default:
        return None
    d, at = _cat_dim(source), 0
    kept = [[v for v in part if v > 1] for part in (shape(source)[:d], shape(source)[d + 1 :])]
    if kept != [before, behind]:
        return None
    for piece in operands(source)[0]:
        end = at + shape(piece)[d]
        if (at, end) == (low, high):
            return piece if piece.meta["val"].dtype == n.meta["val"].dtype else None
        at = end
    return None


def _find_cut(n: fx.Node) -> tuple[fx.Node, int, int, int] | None:
    """Return what a node slices, with the dimension, start and end of the slice; None if it is not a slice."""
    if n.op != "call_function":
        return None
    if n.target is aten.slice.Tensor:
        given = operands(n)
        source, dim = given[0], given[1] if len(given) > 1 else 0
        low, high = given[2] if len(given) > 2 else 0, given[3] if len(given) > 3 else None
        step = given[4] if len(given) > 4 else 1
        size = shape(source)[dim % len(shape(source))]
        low, high = low or 0, size if high is None else min(high, size)
        return (source, dim % len(shape(source)), low, high) if step == 1 and low >= 0 and high >= 0 else None
    if name_of(n) == "getitem" and operands(n)[0].target is aten.split_with_sizes.default:
        source, sizes, dim = (*operands(operands(n)[0]), 0)[:3]
        low = sum(sizes[: operands(n)[1]])
        return source, dim % len(shape(source)), low, low + sizes[operands(n)[1]]
    return None
