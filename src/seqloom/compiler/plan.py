"""A compiled step as plain data, which can be stored: three programs, and what torch computes around them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch

from seqloom.compiler.draws import Draw
from seqloom.compiler.ir import Program


class UnfitError(ValueError):
    """A plan that does not fit the cell or the call that it is used for, such as one whose file was changed."""


@dataclass(frozen=True)
class Value:
    """The shape of a node's value.

    Attributes:
        batch: Which dimension is the batch; None if the value is the same for all rows.
        sizes: Its shape; for a batch dimension, the number of rows in each row of the batch (mostly 1).
        is_truth: Whether its values are True or False; programs store them as 1 and 0.
    """

    batch: int | None
    sizes: tuple[int, ...]
    is_truth: bool = False


@dataclass(frozen=True)
class OperatorCall:
    """A call of one of torch's operators: `operator(*arguments, **named)`.

    Arguments are numbers, None, strings, lists, and references: {"node": 3} is a node's value, {"rows": 2} twice the
    number of rows, {"dtype": "float32"} a dtype.
    """

    operator: str  # "mm.default"
    arguments: tuple[object, ...]
    named: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True)
class BufferMemory:
    """What a buffer of a program is: `lowering.BufferSource` with a node's number.

    Attributes:
        kind: "state", "gradient", "value", "weight" or "stored".
        node: The number of the node.
        index: The number of a state.
        transposed: For weights: whether the node holds (N, K).
    """

    kind: str
    node: int = -1
    index: int = 0
    transposed: bool = False


@dataclass(frozen=True, eq=False)
class Scan:
    """A program with the memory of its buffers."""

    program: Program
    memory: tuple[BufferMemory, ...]

    def nodes(self) -> list[int]:
        """Return the indices of the nodes that must have a value before the program runs."""
        return [m.node for m in self.memory if m.kind in ("value", "weight")]


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled step.

    Attributes:
        calls: The nodes that torch computes, by number, in order.
        values: The shapes of the nodes.
        inputs: The nodes of the inputs by name: x, state_i, start_i, reset, dt, mask, keep_i, dy, dafter_i, draw_i.
        weights: The nodes of the weights by name.
        results: The nodes of the results by name: y, dx, dstart_i, ddt, and "dweight NAME".
        after: For each state, the nodes that equal it after the step.
        infer: The forward program without gradients.
        train: The forward program that saves what the reverse program needs.
        reverse: The reverse program.
        projects: Whether x is the cell's input and `cell.project` is part of the plan; otherwise x is the result of
            `cell.project`.
        alone: If `cell.project` is not part of the plan: whether it treats steps independently, so that it may see
            packed rows.
        draws: The random numbers that a step draws; number i is the input draw_i.
        name: The digest of the stored plan; empty if it is not stored.
        is_loaded: Whether it was read from disk.
    """

    calls: dict[int, OperatorCall]
    values: dict[int, Value]
    inputs: dict[str, int]
    weights: dict[str, int]
    results: dict[str, int]
    after: tuple[tuple[int, ...], ...]
    infer: Scan
    train: Scan
    reverse: Scan
    projects: bool = False
    alone: bool = False
    draws: tuple[Draw, ...] = ()
    name: str = ""
    is_loaded: bool = False

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.after)

    def early(self) -> list[int]:
        """Return the nodes that torch computes before the forward loop, in order."""
        todo, early = self.train.nodes(), set()
        while todo:
            n = todo.pop()
            if n in self.calls and n not in early:
                early.add(n)
                todo += references(self.calls[n])
        return sorted(early)


# Operators without side effects that a plan may call; a stored plan can name no others.
_PURE = """
    _to_copy _unsafe_view abs add alias amax amin arange bitwise_and bitwise_not bitwise_or bmm cat ceil clamp
    clamp_max clamp_min clone cos cosh cumsum detach div embedding eq erf exp expand expm1 flip floor full full_like
    gather ge gt index_select le lift_fresh_copy log log1p logical_and logical_not logical_or lt maximum mean minimum
    mm mul ne neg new_full new_ones new_zeros ones ones_like permute pow prod reciprocal relu reshape roll round
    rsqrt rsub scalar_tensor select select_backward sgn sigmoid sigmoid_backward sign sin sinh slice slice_backward
    split split_with_sizes sqrt squeeze sub sum tanh tanh_backward transpose tril triu trunc unbind unsqueeze var
    view where zeros zeros_like
"""
PURE = frozenset(_PURE.split())
RESHAPES = {"_unsafe_view", "squeeze", "unsqueeze", "view"}  # keep the order of elements


def find_operator(name: str) -> Callable[..., object]:
    """Return one of torch's operators by name.

    Raises:
        ValueError: If it is not one that plans may call.
    """
    if name == "getitem":
        return operator.getitem
    base, _, overload = name.partition(".")
    if base in ("view", "_unsafe_view"):  # strides may differ from those of the trace
        return torch.reshape
    if base not in PURE:
        raise ValueError(f"a plan calls {name}, which is not an operator without side effects")
    function = getattr(getattr(torch.ops.aten, base), overload, None)
    if not isinstance(function, torch._ops.OpOverload):
        raise ValueError(f"a plan calls {name}, which is not an operator of torch")
    return function


def references(call: OperatorCall) -> list[int]:
    """Return the indices of the nodes that a call uses."""
    return _references((call.arguments, call.named))


def _references(value: object) -> list[int]:
    if isinstance(value, dict):
        return [value["node"]] if "node" in value else []
    return [n for v in value for n in _references(v)] if isinstance(value, (list, tuple)) else []
