"""Kinds of nodes of a traced graph: products, sums, pointwise operators, or moves of elements."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

ROWS = 10007  # the batch size while tracing: a prime that divides no size of a layer
_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])


class UnsupportedError(Exception):
    """The cell cannot be compiled; the message tells the user why."""


# torch's names of pointwise operators -> the intermediate form's; None: built from others in lowering.py
POINT: dict[str, str | None] = {
    **{name: name for name in ("add", "sub", "mul", "div", "neg", "sigmoid", "tanh", "exp", "log", "log1p", "expm1")},
    **{name: name for name in ("sqrt", "rsqrt", "reciprocal", "relu", "abs", "sign", "sin", "cos", "erf", "cosh")},
    **{name: name for name in ("maximum", "minimum", "where", "gt", "lt", "ge", "le", "eq", "ne", "floor", "ceil")},
    **{name: name for name in ("sinh", "round", "trunc", "sigmoid_backward", "tanh_backward")},
    "sgn": "sign", "logical_and": "and", "logical_or": "or", "logical_not": "not",
    "bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not", "clamp_min": "maximum", "clamp_max": "minimum",
    "rsub": None, "pow": None, "clamp": None, "_to_copy": None,
}  # fmt: skip
COPIES = {"clone", "detach", "alias", "lift_fresh_copy", "contiguous"}
CONSTANTS = {"full", "full_like", "zeros_like", "ones_like", "zeros", "ones", "scalar_tensor", "new_zeros", "new_ones",
             "new_full"}  # fmt: skip
# Worth saving for the reverse loop instead of recomputing.
COSTLY = {"sigmoid", "tanh", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "div", "reciprocal", "sin", "cos", "erf",
          "pow", "sinh", "cosh"}  # fmt: skip
SUMS = {"sum": "sum", "amax": "maximum", "amin": "minimum"}
VIEWS = {"view", "reshape", "_unsafe_view", "squeeze", "unsqueeze"}
PIECES = {"cat", "slice_backward", "select_backward"}  # assembled from several parts, or from zeros and one part
MOVES = (
    {"permute", "transpose", "expand", "slice", "select", "split_with_sizes", "split", "unbind", "getitem"}
    | VIEWS
    | PIECES
    | COPIES
)
RANDOM = ("rand", "dropout", "bernoulli", "normal", "multinomial", "uniform", "exponential", "geometric", "cauchy")


_WIDE = "; it does for at most 128 values"
# What to write instead of operators that are not compiled.
CURES = {
    "argmax": "; compare with the maximum instead: h == h.amax(-1, keepdim=True)",
    "argmin": "; compare with the minimum instead: h == h.amin(-1, keepdim=True)",
    "sort": _WIDE, "topk": _WIDE,
    "cummax": "; torch.amax over slices is", "cummin": "; torch.amin over slices is",
    "gather": "; index with a buffer that is the same for all rows: h[:, self.order]",
    "index": "; index units with a buffer of one dimension: h[:, self.order]",
    "convolution": "; convolutions over one dimension with at most 16 taps and one group, or one for each channel, are",
}  # fmt: skip


def name_of(n: fx.Node) -> str:
    """Return an operator's name without its overload: `add`."""
    if n.target is operator.getitem:
        return "getitem"
    target: Any = n.target
    return target._schema.name.split("::")[-1] if hasattr(target, "_schema") else str(target)


def title_of(n: fx.Node) -> str:
    """Return a node's name for messages: `w_h.weight` for a weight, `w_h.weight.T` for its transpose."""
    if "title" in n.meta:
        return str(n.meta["title"])
    if name_of(n) in ("permute", "transpose") and len(shape(n)) == 2 and batch(n) is None:
        source = title_of(operands(n)[0])
        return source.removesuffix(".T") if source.endswith(".T") else f"{source}.T"
    return n.name


def operands(n: fx.Node) -> tuple[Any, ...]:
    """Return a node's positional arguments: nodes, numbers, None, or lists of these."""
    return n.args


def kind(n: fx.Node) -> str:
    """Return the kind of a node.

    Returns:
        "product" (with a weight), "contraction" (of two factors that both depend on the row), "sum", "move",
        "constant", "point" or "unknown".
    """
    name = name_of(n)
    if name in MOVES:
        return "move"
    if name in ("mm", "bmm"):
        has_weight = any(batch(a) is None for a in operands(n)[:2])
        return "product" if has_weight and batch(n) is not None else "contraction"
    if name in SUMS:
        return "sum"
    if name in CONSTANTS:
        return "constant"
    return "point" if name in POINT else "unknown"


def check_known(n: fx.Node) -> None:
    """Raise UnsupportedError if a node of a loop is not one that the compiler knows."""
    if kind(n) == "unknown":
        check_no_noise(n)
        value = n.meta["val"]
        if any(isinstance(v, torch.Tensor) and v.is_complex() for v in (value if isinstance(value, list) else [value])):
            raise UnsupportedError(
                f"step uses complex numbers{line_of(n)}; keep the real and the imaginary part as two tensors"
            )
        cure = CURES.get(name_of(n), "")
        raise UnsupportedError(f"step calls {name_of(n)}{line_of(n)}, which the compiler does not know{cure}")


def check_no_noise(n: fx.Node) -> None:
    """Raise UnsupportedError if a node draws random numbers, or reads a value from a tensor."""
    if any(part in name_of(n) for part in RANDOM):
        raise UnsupportedError(f"step draws random numbers{line_of(n)}")
    if name_of(n) == "_local_scalar_dense":
        raise UnsupportedError(f"step depends on the value of a tensor by .item(){line_of(n)}")


def shape(n: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's value."""
    return tuple(n.meta["val"].shape)


def batch(n: fx.Node) -> int | None:
    """Return which dimension of a node is the batch; None if it has none."""
    value = n.meta["val"]
    if not isinstance(value, torch.Tensor):  # a list of tensors
        return next((b for v in value if (b := _batch_of(v.shape)) is not None), None)
    return _batch_of(value.shape)


def _batch_of(sizes: Sequence[int]) -> int | None:
    places = [i for i, v in enumerate(sizes) if v and v % ROWS == 0]
    if len(places) > 1:
        raise UnsupportedError("step combines different rows of the batch")
    return places[0] if places else None


def row(n: fx.Node) -> tuple[int, ...]:
    """Return the shape of one row of a node: the batch is 1, or m if each row of the batch holds m."""
    value = n.meta["val"]
    known = n.meta.get("seqloom_row")
    if known is None or known[0] is not value:  # torch copies the metadata of a node to nodes that are derived from it
        known = n.meta["seqloom_row"] = value, tuple(v // ROWS if v and v % ROWS == 0 else v for v in value.shape)
    sizes: tuple[int, ...] = known[1]
    return sizes


def count(n: fx.Node) -> int:
    """Return how many elements a row of a node has."""
    return math.prod(row(n))


def is_truth(n: fx.Node) -> bool:
    """Return whether a node's values are True or False."""
    return bool(n.meta["val"].dtype == torch.bool)


def constant_value(n: fx.Node) -> float:
    """Return the number that a constant node is filled with."""
    name = name_of(n)
    if "ones" in name or "zeros" in name:
        return 1.0 if "ones" in name else 0.0
    return float(operands(n)[{"scalar_tensor": 0, "new_full": 2}.get(name, 1)])


def reduced_dims(n: fx.Node) -> list[int]:
    """Return the dimensions that a sum or maximum combines."""
    s = shape(operands(n)[0])
    dims = operands(n)[1] if len(operands(n)) > 1 and operands(n)[1] not in (None, []) else range(len(s))
    return sorted(d % len(s) for d in ([dims] if isinstance(dims, int) else dims))


def is_internal(file: str) -> bool:
    """Return whether a source file belongs to torch, to Python or to this package, not to a user's cell."""
    typed = file.startswith(("<ipython", "<stdin", "<string"))  # at a prompt
    inside = file.startswith((_TORCH, _PACKAGE)) or (file.startswith("<") and not typed)
    return inside and not file.startswith(f"{_PACKAGE}/cells/")


def line_of(node: fx.Node) -> str:
    """Return the place in the user's code that a node comes from, as ' (file.py:31)'; empty if it is unknown.

    A node of the derivative has no place in the code; that of its nearest operand or user is returned.
    """
    todo, seen = [node], {node}
    for n in todo:  # grows: the nearest first
        line = _own_line(n)
        if line:
            return f" ({line})"
        near = [a for a in (*n.all_input_nodes, *n.users) if a not in seen]
        todo += near
        seen.update(near)
    return ""


def _own_line(node: fx.Node) -> str:
    for text in reversed((node.meta.get("stack_trace") or "").splitlines()):
        if text.strip().startswith('File "'):
            file, _, rest = text.strip()[6:].partition('", line ')
            if not is_internal(file):
                return f"{Path(file).name}:{rest.split(',')[0]}"
    return ""
