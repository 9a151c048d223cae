"""Pointwise operators of torch as instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from seqloom.compiler.ir import Argument
from seqloom.compiler.nests import Body
from seqloom.compiler.nodes import POINT, UnsupportedError, line_of, name_of, operands


def add_point(n: fx.Node, arguments: Sequence[Argument | None], body: Body) -> Argument:
    """Add the instructions of a pointwise node.

    Args:
        n: The node.
        arguments: Its positional arguments; None for those that are not numbers.
        body: Where to add them.

    Returns:
        The node's value.
    """
    name, named = name_of(n), dict[str, Any](n.kwargs)
    values = [a for a in arguments if a is not None]
    if named.get("alpha", 1) != 1:
        values[1] = body.add("mul", values[1], float(named["alpha"]))
    if name == "rsub":
        return body.add("sub", values[1], values[0])
    if name == "_to_copy":
        before, after = operands(n)[0].meta["val"].dtype, n.meta["val"].dtype
        if not after.is_floating_point and before != after:
            raise UnsupportedError(f"step converts numbers to {after}{line_of(n)}")
        return values[0]
    if name == "pow":
        return _add_power(values[0], values[1], body)
    if name == "clamp":
        value = values[0]
        for operator, bound in zip(("maximum", "minimum"), (*arguments[1:], None), strict=False):
            value = value if bound is None else body.add(operator, value, bound)
        return value
    if named.get("rounding_mode"):
        raise UnsupportedError(f"step divides with rounding{line_of(n)}, which the compiler does not know")
    simple = POINT[name]
    assert simple is not None
    return body.add(simple, *values)


def _add_power(base: Argument, exponent: Argument, body: Body) -> Argument:
    if exponent == 2.0:
        return body.add("mul", base, base)
    if exponent == 3.0:
        return body.add("mul", body.add("mul", base, base), base)
    simple = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent) if isinstance(exponent, float) else None
    return body.add(simple, base) if simple else body.add("pow", base, exponent)
