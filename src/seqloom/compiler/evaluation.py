"""Evaluate the operators of a plan that run in torch, for the rows of all steps at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor

from seqloom.compiler.nodes import UnsupportedError
from seqloom.compiler.plan import RESHAPES, OperatorCall, Plan, find_operator, references

LONGEST_SUM = 512  # maximum number of products that `multiply_heads` adds up sequentially
FACTORIES = {"arange", "full", "ones", "scalar_tensor", "zeros"}  # operators without a tensor argument


# Operators that copy nothing, or whose result is not a tensor.
VIEWS = frozenset(
    [
        *("alias", "detach", "expand", "getitem", "permute", "same", "select", "slice", "split", "split_with_sizes"),
        *("squeeze", "transpose", "unbind", "unsqueeze", "view"),
    ]
)
PRODUCT_NAMES = frozenset(["add_product", "bmm", "mm"])


class Step(NamedTuple):
    """A call of an operator that is ready to run.

    Attributes:
        node: The node that it computes.
        function: The function to call.
        arguments: Its arguments, without the values of nodes.
        references: Which arguments are values of nodes: positions and nodes.
        named: Its named arguments.
        call: Set if an argument depends on the number of rows, on the device, or is a list of values: all arguments
            are then read from it.
        kind: "product", "move" or "other".
        is_shared: Whether a program of the plan has a buffer for the value, which does not depend on states.
    """

    node: int
    function: Callable[..., object]
    arguments: tuple[object, ...]
    references: tuple[tuple[int, int], ...]
    named: dict[str, Any]
    call: OperatorCall | None
    kind: str
    is_shared: bool = False


class Evaluator:
    """Compute nodes with torch, for all rows of all steps at once."""

    def __init__(self, plan: Plan) -> None:
        calls = _simplify(plan)
        self.needs = {n: tuple(references(call)) for n, call in calls.items()}
        shared = {m.node for scan in (plan.infer, plan.train, plan.reverse) for m in scan.memory}
        shared -= _find_late(plan, self.needs)
        self.steps = {n: _prepare(n, call)._replace(is_shared=n in shared) for n, call in calls.items()}
        self.orders: dict[tuple[tuple[int, ...], str], list[Step]] = {}

    def compute(self, wanted: tuple[int, ...], known: Known, rows: int, stage: str, dtype: torch.dtype) -> None:
        """Compute nodes, and what they need, into `known`.

        Args:
            wanted: The nodes.
            known: The values of other nodes.
            rows: The number of rows of all steps together.
            stage: A name for the set of nodes that are known: the same nodes are known in each call with that name.
            dtype: The type of the products.
        """
        order = self.orders.get((wanted, stage))
        if order is None:
            order = self.orders[wanted, stage] = self.order(wanted, known)
        evaluate(order, known, rows, known.device, dtype)

    def order(self, wanted: Iterable[int], known: Container[int]) -> list[Step]:
        """Return the calls that compute nodes and everything that these need, in order.

        Args:
            wanted: The nodes.
            known: The nodes that have a value.

        Raises:
            UnsupportedError: If a node without a value is needed, which is a bug in the compiler.
        """
        todo, needed = list(wanted), set()
        while todo:
            n = todo.pop()
            if n not in known and n not in needed:
                if n not in self.needs:
                    raise UnsupportedError(f"the compiler lost node {n} of the step; please report this cell")
                needed.add(n)
                todo += self.needs[n]
        return [self.steps[n] for n in sorted(needed)]


def evaluate(
    steps: Iterable[Step],
    known: dict[int, Any],
    rows: int,
    device: torch.device,
    dtype: torch.dtype,
    allocate: Callable[..., Tensor] | None = None,
) -> None:
    """Run steps and add their results to `known`.

    In 16 bits only products run in that type and everything else in float32: a layer norm, for example, is traced into
    many operators, each of which would round. What a program reads of the inputs is rounded at once: where a gradient
    depends on its comparison with a state, torch and the program compare the same numbers.

    Args:
        steps: What to compute, in order.
        known: The values of nodes.
        rows: The number of rows of all steps together.
        device: Where new tensors go.
        dtype: The type of the products.
        allocate: Returns memory for the products of all rows, like a tensor (first argument) and of a shape (the
            others); None if torch allocates it. Only without gradients.
    """
    is_short = dtype.itemsize == 2
    for node, function, arguments, positions, named, call, kind, is_shared in steps:
        if call is not None:
            extra = {name: _resolve(a, known, rows) for name, a in call.named}
            if call.operator.partition(".")[0] in FACTORIES:
                extra["device"] = device
            known[node] = function(*(_resolve(a, known, rows) for a in call.arguments), **extra)
            continue
        values = list(arguments)
        for i, n in positions:
            values[i] = known[n]
        if is_short and kind != "move":
            _convert(values, positions, dtype if kind == "product" else torch.float32)
        if allocate is not None and function in PRODUCTS and known[positions[-2][1]].shape[0] == rows:
            left, right = (known[n] for _, n in positions[-2:])
            known[node] = function(*values, out=allocate(left, rows, right.shape[1]))
        else:
            value = function(*values, **named)
            known[node] = value.to(dtype) if is_short and is_shared and _is_float32(value) else value


def _find_late(plan: Plan, needs: Mapping[int, Sequence[int]]) -> set[int]:
    """Return the nodes that depend on states or on gradients."""
    late = {n for name, n in plan.inputs.items() if name.startswith(("state_", "dy", "dafter_"))}
    late.update(n for nodes in plan.after for n in nodes)
    for n in sorted(needs):
        if any(needed in late for needed in needs[n]):
            late.add(n)
    return late


def _is_float32(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _convert(values: list[Any], positions: Iterable[tuple[int, int]], dtype: torch.dtype) -> None:
    """Convert the floating-point tensors among the arguments."""
    for i, _ in positions:
        t = values[i]
        if isinstance(t, Tensor) and t.is_floating_point() and t.dtype != dtype:
            values[i] = t.to(dtype)


def _simplify(plan: Plan) -> dict[int, OperatorCall]:
    """Combine calls of a plan that torch runs faster as a single call."""
    uses = Counter(n for call in plan.calls.values() for n in references(call))
    uses.update(m.node for scan in (plan.infer, plan.train, plan.reverse) for m in scan.memory)
    uses.update(plan.results.values())
    calls = dict(plan.calls)

    def source(a: object, operator: str) -> OperatorCall | None:
        call = plan.calls.get(a["node"]) if isinstance(a, dict) and "node" in a else None
        return call if call is not None and call.operator == operator else None

    sums: dict[tuple[int, str], int] = {}  # operands and kind of a sum -> the first node that computes it
    for n, call in plan.calls.items():
        first = call.arguments[0] if call.arguments else None
        root = _find_root(n, plan)
        if root != n:
            calls[n] = OperatorCall(SAME, ({"node": root},))
            continue
        if call.operator == "sum.dim_IntList" and isinstance(first, dict):
            # two biases of one gate have the same gradient, each in separate memory
            earlier = sums.setdefault((_find_root(first["node"], plan), repr((call.arguments[1:], call.named))), n)
            if earlier != n:
                calls[n] = OperatorCall("clone.default", ({"node": earlier},))
            continue
        turned = source(first, call.operator)
        if call.operator == "permute.default" and turned is not None and turned.arguments[1:] == call.arguments[1:]:
            if call.arguments[1] == [1, 0]:
                calls[n] = OperatorCall(SAME, turned.arguments[:1])
        elif call.operator == "add.Tensor" and not call.named and len(call.arguments) == 2:
            for a, b in (call.arguments, call.arguments[::-1]):
                product, bias = source(a, "mm.default"), plan.values.get(b["node"]) if isinstance(b, dict) else None
                if product and isinstance(a, dict) and uses[a["node"]] == 1 and bias and len(bias.sizes) == 1:
                    calls[n] = OperatorCall(ADD_PRODUCT, (b, *product.arguments))
    return calls


def _find_root(n: int, plan: Plan) -> int:
    """Follow reshapes back from node n to the earliest node of the same shape; return n if there is none."""
    root, at = n, n
    while at in plan.calls and plan.calls[at].operator.partition(".")[0] in RESHAPES:
        first = plan.calls[at].arguments[0]
        at = first["node"] if isinstance(first, dict) else -1
        if at in plan.values and plan.values[at] == plan.values.get(n):
            root = at
    return root


def _prepare(node: int, call: OperatorCall) -> Step:
    function = _FUNCTIONS.get(call.operator) or find_operator(call.operator)
    positions = tuple((i, a["node"]) for i, a in enumerate(call.arguments) if isinstance(a, dict) and "node" in a)
    rest = [a for a in call.arguments if not (isinstance(a, dict) and "node" in a)] + [a for _, a in call.named]
    if call.operator.partition(".")[0] in FACTORIES or any(_varies(a) for a in rest):
        return Step(node, function, (), (), {}, call, "other")
    arguments = tuple(None if isinstance(a, dict) and "node" in a else _resolve(a, {}, 0) for a in call.arguments)
    name = call.operator.partition(".")[0]
    kind = "product" if name in PRODUCT_NAMES else "move" if name in VIEWS else "other"
    return Step(node, function, arguments, positions, {name: _resolve(a, {}, 0) for name, a in call.named}, None, kind)


def _varies(a: object) -> bool:
    """Return whether an argument contains the value of a node, or depends on the number of rows."""
    if isinstance(a, dict):
        return "node" in a or "rows" in a
    return isinstance(a, (list, tuple)) and any(_varies(v) for v in a)


def multiply_heads(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b for (heads, m, k) and (heads, k, n).

    On GPUs, torch.bmm adds up float32 products sequentially; for the weights' gradients k is the number of rows of all
    steps, so long sums are split here.
    """
    pieces = a.shape[-1] // LONGEST_SUM
    if not (a.is_cuda and a.dtype == torch.float32 and pieces > 1):
        return torch.bmm(a, b)
    k = pieces * LONGEST_SUM
    left = a[..., :k].unflatten(-1, (pieces, LONGEST_SUM)).movedim(-2, 0)
    parts = torch.matmul(left, b[:, :k].unflatten(1, (pieces, LONGEST_SUM)).movedim(1, 0))
    return parts.sum(0) + torch.bmm(a[..., k:], b[:, k:])


def keep_same(t: Tensor) -> Tensor:
    """Return a value that another node also has."""
    return t


# Functions of torch that are equivalent to an operator and faster to call.
SAME, ADD_PRODUCT = "same", "add_product"  # not operators of torch; `_simplify` inserts them
_FUNCTIONS: dict[str, Callable[..., object]] = {
    SAME: keep_same,
    ADD_PRODUCT: torch.addmm,
    "bmm.default": multiply_heads,
    "add.Tensor": torch.add,
    "mm.default": torch.mm,
    "mul.Tensor": torch.mul,
    "permute.default": torch.permute,
    "sub.Tensor": torch.sub,
    "sum.dim_IntList": torch.sum,
}


PRODUCTS: tuple[Callable[..., object], ...] = (torch.mm, torch.addmm)


class Known(dict):  # type: ignore[type-arg]
    """Values of nodes by number; some are computed on first access."""

    def __init__(self, values: Mapping[int, object], later: Mapping[int, Callable[[], Tensor]]) -> None:
        super().__init__(values)
        self.later = dict(later)
        tensors = (v for v in values.values() if isinstance(v, Tensor))
        self.device = next((t.device for t in tensors), torch.device("cpu"))
        for n in later:
            self[n] = None

    def __getitem__(self, n: int) -> object:
        if n in self.later:
            self[n] = self.later.pop(n)()
        return super().__getitem__(n)


def _resolve(a: object, known: Mapping[int, object], rows: int) -> object:
    if isinstance(a, dict):
        if "node" in a:
            return known[a["node"]]
        return a["rows"] * rows if "rows" in a else getattr(torch, a["dtype"])
    return [_resolve(v, known, rows) for v in a] if isinstance(a, (list, tuple)) else a
