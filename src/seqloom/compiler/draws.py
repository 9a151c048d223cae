"""Random numbers that a step draws: its plan draws those of all steps before the loop.

They are the numbers of the reference loop: the same calls in the same order, step by step, in each step in the order of
the code, for the rows that have the step, longest first. A seed therefore gives the same results in the loop, in the
compiled step and in single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from seqloom.compiler.nodes import ROWS, UnsupportedError, check_no_noise, line_of, name_of, operands

aten = torch.ops.aten


class Draw(NamedTuple):
    """Random numbers that a step draws.

    Attributes:
        kind: "normal" (mean, deviation), "uniform" (low, high), "exponential" (rate), "bernoulli" (probability),
            "dropout" (probability; 0 or 1 / (1 - probability)) or "chance" (uniform from 0 to 1, compared with
            probabilities as `torch.bernoulli` does on a CPU).
        numbers: The parameters.
        sizes: The shape of one row.
        layout: For "dropout" the offset and the strides of what is dropped, on which its numbers depend on a GPU.
        line: Where in the step, for messages.
    """

    kind: str
    numbers: tuple[float, ...]
    sizes: tuple[int, ...]
    layout: tuple[int, ...] = ()
    line: str = ""


_ARGUMENTS = {"normal": 2, "uniform": 2, "exponential": 1, "bernoulli": 1, "dropout": 1, "chance": 0}


def check_draw(draw: Draw) -> None:
    """Check random numbers of a plan from a file.

    Raises:
        ValueError: If they cannot be drawn.
    """
    strides = 2 + len(draw.sizes) if draw.kind == "dropout" else 0
    is_known = _ARGUMENTS.get(draw.kind) == len(draw.numbers) and len(draw.layout) == strides
    if not is_known or any(size < 1 for size in draw.sizes) or any(n < 0 for n in draw.layout):
        raise ValueError(f"a plan draws unknown random numbers: {draw}")


def fill(draw: Draw, out: Tensor) -> None:
    """Draw the numbers of one step, from the default generator of the device.

    Args:
        draw: What to draw.
        out: (rows, ...), contiguous; where to write them.
    """
    if draw.kind == "normal":
        out.normal_(*draw.numbers)
    elif draw.kind == "uniform":
        out.uniform_(*draw.numbers)
    elif draw.kind == "exponential":
        out.exponential_(*draw.numbers)
    elif draw.kind == "bernoulli":
        out.bernoulli_(*draw.numbers)
    elif draw.kind == "dropout":
        offset, *strides = draw.layout
        last = offset + sum((n - 1) * stride for n, stride in zip(out.shape, strides, strict=True))
        ones = out.new_ones(last + 1).as_strided(out.shape, strides, offset)
        out.copy_(torch.nn.functional.dropout(ones, draw.numbers[0]))
    else:
        out.uniform_()


def draw_steps(draws: Sequence[Draw], counts: Sequence[int], like: Tensor) -> tuple[Tensor, ...]:
    """Draw the numbers of all steps.

    Args:
        draws: What a step draws, in its order.
        counts: The number of rows of each step.
        like: A tensor with the type and the device.

    Returns:
        For each of `draws` a tensor (sum of counts, ...).
    """
    packed = tuple(like.new_empty(sum(counts), *draw.sizes) for draw in draws)
    at = 0
    for count in counts:
        for draw, numbers in zip(draws, packed, strict=True):
            fill(draw, numbers.narrow(0, at, count))
        at += count
    return packed


def read_random_state(device: torch.device) -> Tensor:
    """Return the state of a device's default generator."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def replay_random(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw the numbers that followed a state of the default generator again; nothing changes if the state is None."""
    if state is None:
        yield
        return
    before = read_random_state(device)
    _set_random_state(state, device)
    try:
        yield
    finally:
        _set_random_state(before, device)


def _set_random_state(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def hoist_draws(
    plain: fx.GraphModule, rows: int, dtype: torch.dtype, place: Callable[[fx.Graph], fx.Node]
) -> list[Draw]:
    """Replace the random numbers that a traced step draws with inputs; return what they are.

    Args:
        plain: The step.
        rows: The batch size of the trace.
        dtype: The type of the step.
        place: Returns the node after which the new inputs are inserted.

    Raises:
        UnsupportedError: If some of them cannot be drawn before the loop.
    """
    draws: list[Draw] = []
    graph = plain.graph
    last = place(graph)
    for n in list(graph.nodes):
        found = _find(n) if n.op == "call_function" else None
        if found is None:
            continue
        kind, numbers, finish = found
        value: Any = n.meta["val"]
        value = value[0] if isinstance(value, (list, tuple)) else value
        _check(n, value, rows, dtype)
        layout: tuple[int, ...] = ()
        if kind == "dropout":
            ones = operands(n)[0]  # of `lines._drop`
            if name_of(ones) != "ones_like":
                raise UnsupportedError(f"step calls torch.native_dropout{line_of(n)}; call F.dropout instead")
            dropped = operands(ones)[0].meta["val"]
            layout = (dropped.storage_offset(), *dropped.stride())
        draws.append(Draw(kind, tuple(map(float, numbers)), tuple(value.shape[1:]), layout, line_of(n)))
        with graph.inserting_after(last):
            last = graph.placeholder(f"draw_{len(draws) - 1}")
        last.meta |= {"val": value.new_empty(value.shape), "stack_trace": n.meta.get("stack_trace")}
        with graph.inserting_before(n):
            result = finish(n, last)
        if name_of(n) == "native_dropout":
            for user in list(n.users):  # only the first result is used
                user.replace_all_uses_with(result)
                graph.erase_node(user)
        else:
            n.replace_all_uses_with(result)
        graph.erase_node(n)
    for n in graph.nodes:
        if n.op == "call_function":
            check_no_noise(n)
    graph.eliminate_dead_code()
    plain.recompile()
    return draws


def _check(n: fx.Node, value: Tensor, rows: int, dtype: torch.dtype) -> None:
    cure = "draw one for each row and unit, as by torch.randn_like(h)"
    if value.dim() == 0 or value.shape[0] != rows or ROWS in value.shape[1:]:
        raise UnsupportedError(f"step draws random numbers without the batch as first dimension{line_of(n)}; {cure}")
    if value.dtype != dtype:
        raise UnsupportedError(f"step draws random numbers in {value.dtype}, but computes in {dtype}{line_of(n)}")
    if not value.is_contiguous():
        raise UnsupportedError(f"step draws random numbers in the order of a transposed tensor{line_of(n)}; {cure}")


Found = tuple[str, tuple[float, ...], Callable[[fx.Node, fx.Node], fx.Node]]


def _find(n: fx.Node) -> Found | None:
    """Return what a node draws, and a function that builds its value from the numbers; None if that is not known."""
    rule = _RULES.get(n.target)
    if rule is None or n.kwargs.get("generator") is not None:
        return None
    found: Found | None = rule(*operands(n), **{k: v for k, v in n.kwargs.items() if k in _NAMED})
    return found


_NAMED = {"mean", "std", "from", "to", "lambd", "p"}


def _keep(n: fx.Node, numbers: fx.Node) -> fx.Node:
    return numbers


def _call(target: Any, *args: Any, **named: Any) -> Callable[[fx.Node, fx.Node], fx.Node]:  # noqa: ANN401
    """Return a function that applies an operator to the numbers; None among its arguments stands for them."""

    def build(n: fx.Node, numbers: fx.Node) -> fx.Node:
        given = tuple(numbers if a is None else a for a in args)
        new = n.graph.call_function(target, given, named)
        values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in given]
        new.meta |= {"val": target(*values, **named), "stack_trace": n.meta.get("stack_trace")}
        return new

    return build


def _apply(target: Any, parameter: fx.Node) -> Callable[[fx.Node, fx.Node], fx.Node]:  # noqa: ANN401
    """Return a function that combines the numbers with a parameter, which gets no gradient in torch either."""

    def build(n: fx.Node, numbers: fx.Node) -> fx.Node:
        return _call(target, None, _call(aten.detach.default, None)(n, parameter))(n, numbers)

    return build


def _chain(*builders: Callable[[fx.Node, fx.Node], fx.Node]) -> Callable[[fx.Node, fx.Node], fx.Node]:
    def build(n: fx.Node, numbers: fx.Node) -> fx.Node:
        for builder in builders:
            numbers = builder(n, numbers)
        return numbers

    return build


def _uniform(like: object, *limits: float, **named: float) -> Found:
    low, high = (*limits, *(0.0, 1.0)[len(limits) :])
    return "uniform", (named.get("from", low), named.get("to", high)), _keep


def _choose(p: fx.Node) -> Found:
    return "chance", (), _chain(_call(aten.lt.Tensor, None, p), _call(aten._to_copy.default, None, dtype=_type_of(p)))


def _type_of(n: fx.Node) -> torch.dtype:
    dtype: torch.dtype = n.meta["val"].dtype
    return dtype


_RULES: dict[Any, Callable[..., Found | None]] = {
    aten.randn.default: lambda *_: ("normal", (0.0, 1.0), _keep),
    aten.randn_like.default: lambda *_: ("normal", (0.0, 1.0), _keep),
    aten.rand.default: lambda *_: ("uniform", (0.0, 1.0), _keep),
    aten.rand_like.default: lambda *_: ("uniform", (0.0, 1.0), _keep),
    aten.normal_functional.default: lambda _, mean=0.0, std=1.0: ("normal", (mean, std), _keep),
    aten.normal.float_float: lambda mean, std, *_: ("normal", (mean, std), _keep),
    aten.normal.Tensor_float: lambda mean, std=1.0: ("normal", (0.0, std), _apply(aten.add.Tensor, mean)),
    aten.normal.Tensor_Tensor: lambda mean, std: (
        "normal",
        (0.0, 1.0),
        _chain(_apply(aten.mul.Tensor, std), _apply(aten.add.Tensor, mean)),
    ),
    aten.uniform.default: _uniform,
    aten.exponential.default: lambda _, lambd=1.0: ("exponential", (lambd,), _keep),
    aten.bernoulli.p: lambda _, p=0.5: ("bernoulli", (p,), _keep),
    aten.bernoulli.default: _choose,
    aten.native_dropout.default: lambda _x, p, _train: ("dropout", (p,), _keep),
}
