"""Rewrites of a traced step that move work out of the loop."""

from __future__ import annotations

import torch
from torch import fx

from seqloom.compiler.nodes import ROWS, operands

aten = torch.ops.aten


def _late_nodes(graph: fx.Graph, late: set[int]) -> tuple[list[fx.Node], set[fx.Node]]:
    """Return the placeholders, and every node that needs a state."""
    holders = [n for n in graph.nodes if n.op == "placeholder"]
    reached = {holders[i] for i in late}
    for n in graph.nodes:
        if any(a in reached for a in n.all_input_nodes):
            reached.add(n)
    return holders, reached


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
        n.replace_all_uses_with(total)
        is_changed = True
    graph.eliminate_dead_code()
    plain.recompile()
    return is_changed


def gather_early_terms(plain: fx.GraphModule, late: set[int]) -> None:
    """Rewrite x + U h + b as (x + b) + U h, so that what needs no state is added up before the loop."""
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
