"""The CUDA text of one unit of a cell, and of its derivative, for the gated GPU kernels.

The text has the functions of gated/gru.cuh: `compute_inside`, `update_state` and `backpropagate`. The derivative comes
from autograd. Cheap values are recomputed in the backward pass; the struct `Inside` carries the rest.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, fx

from seqloom.compiler.fingerprint import digest_compiler
from seqloom.compiler.gated import GatedProgram, Unit
from seqloom.compiler.ir import Access, Argument, Instruction, Register
from seqloom.compiler.nests import Body
from seqloom.compiler.nodes import COPIES, UnsupportedError, constant_value, kind, name_of, operands
from seqloom.compiler.points import add_point
from seqloom.compiler.rules import late_rules
from seqloom.core.cache import cache_folder, read_cached, write_cached

# Operators of the intermediate form in CUDA C++; truth values are 0 and 1, and NaN passes through as in torch.
_TEXT = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} * inverse({1})", "neg": "-{0}",
    "fma": "{0} * {1} + {2}", "sigmoid": "sigmoid({0})", "tanh": "hyperbolic_tangent({0})",
    "exp": "exp2_(1.4426950408889634f * {0})", "relu": "({0} < 0.f ? 0.f : {0})", "copy": "{0}",
    "maximum": "({0} > {1} || {0} != {0} ? {0} : {1})", "minimum": "({0} < {1} || {0} != {0} ? {0} : {1})",
    "abs": "absolute({0})",
    "reciprocal": "inverse({0})", "rsqrt": "inverse_root({0})",
    "sign": "({0} > 0.f ? 1.f : {0} < 0.f ? -1.f : 0.f)", "where": "({0} != 0.f ? {1} : {2})",
    "gt": "({0} > {1} ? 1.f : 0.f)", "lt": "({0} < {1} ? 1.f : 0.f)", "ge": "({0} >= {1} ? 1.f : 0.f)",
    "le": "({0} <= {1} ? 1.f : 0.f)", "eq": "({0} == {1} ? 1.f : 0.f)", "ne": "({0} != {1} ? 1.f : 0.f)",
    "and": "({0} != 0.f && {1} != 0.f ? 1.f : 0.f)", "or": "({0} != 0.f || {1} != 0.f ? 1.f : 0.f)",
    "not": "({0} == 0.f ? 1.f : 0.f)",
    "sigmoid_backward": "{0} * {1} * (1.f - {1})", "tanh_backward": "{0} * (1.f - {1} * {1})",
    "round": "rintf({0})",
    **{name: f"{name}f({{0}})" for name in ("log", "log1p", "expm1", "sqrt", "sin", "cos", "sinh", "cosh", "erf")},
    **{name: f"{name}f({{0}})" for name in ("floor", "ceil", "trunc")},
    "pow": "powf({0}, {1})",
}  # fmt: skip
# Recomputed in the backward pass instead of being carried there in a register.
_CHEAP = {"add", "sub", "mul", "neg", "fma", "copy", "gt", "lt", "ge", "le", "eq", "ne", "and", "or", "not", "where"}
_CHEAP |= {"relu", "maximum", "minimum", "abs", "sign"}


def _is_true(a: Tensor) -> Tensor:
    return a != 0


_COMPARISONS = ("gt", "lt", "ge", "le", "eq", "ne")
_TORCH: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div", "neg", "sigmoid", "tanh", "exp", "relu")},
    **{name: getattr(torch, name) for name in ("maximum", "minimum", "abs", "reciprocal", "rsqrt", "sign", "log")},
    **{name: getattr(torch, name) for name in ("log1p", "expm1", "sqrt", "sin", "cos", "sinh", "cosh", "erf")},
    **{name: getattr(torch, name) for name in ("floor", "ceil", "trunc", "round", "pow")},
    **{name: lambda a, b, compare=getattr(torch, name): compare(a, b).to(a.dtype) for name in _COMPARISONS},
    "copy": lambda a: a,
    "fma": lambda a, b, c: a * b + c,
    "where": lambda a, b, c: torch.where(_is_true(a), b, c),
    "and": lambda a, b: (_is_true(a) & _is_true(b)).to(a.dtype),
    "or": lambda a, b: (_is_true(a) | _is_true(b)).to(a.dtype),
    "not": lambda a: (a == 0).to(a.dtype),
}


def run_unit(unit: Unit, leaves: Sequence[Tensor]) -> list[Tensor]:
    """Compute the states after a step with torch.

    Args:
        unit: The equations of one unit.
        leaves: The values of the unit's inputs, in the order of `unit.leaves`; all of one shape.
    """
    registers: list[Tensor] = []

    def find(a: Argument) -> Tensor:
        if isinstance(a, Register):
            return registers[a.index]
        return leaves[a.buffer] if isinstance(a, Access) else torch.full_like(leaves[0], a)

    for i in unit.body:
        if i.operator not in _TORCH:
            raise UnsupportedError(f"step uses {i.operator}, which the gated kernels do not know")
        registers.append(_TORCH[i.operator](*(find(a) for a in i.arguments)))
    return [find(a) for a in unit.after]


def find_unit(cell: GatedProgram) -> str:
    """Return the result of `write_unit`, from the cache folder if possible: loading autograd takes seconds."""
    key = hashlib.sha256(f"{digest_compiler()}\n{cell!r}".encode()).hexdigest()
    path = cache_folder("cells") / f"{key}.cuh"
    kept = read_cached(path, "compiled unit")
    if kept is not None:
        return kept.decode()
    text = write_unit(cell)
    write_cached(path, text.encode(), "compiled unit")
    return text


def write_unit(cell: GatedProgram) -> str:
    """Return the text of gated/<cell>.cuh: the equations of one unit and their derivative.

    Raises:
        UnsupportedError: If the cell uses an operator that CUDA text lacks.
    """
    unit, k = cell.unit, len(cell.states)
    body, after, gradients = _differentiate(unit)
    names = dict(enumerate(unit.leaves))
    names |= {len(names) + i: f"d{i}" for i in range(k)}
    first_pull = len(unit.leaves)
    late = _reach(body, lambda a: isinstance(a, Access) and a.buffer >= first_pull)
    early = [i for i in body if i.out not in late]
    fields = _choose_fields(unit, early, [i for i in body if i.out in late], after, gradients)

    inside = _Writer(names, {})
    lines = inside.write(early)
    values = [inside.show(f) for f in fields]
    for a in after:
        values += [] if a in fields else [inside.show(a)]
    every = [*fields, *(a for a in after if a not in fields)]
    carried = {a: f"in.f{i}" for i, a in enumerate(every)}
    back = _Writer(names, carried)
    needed = _need(body, gradients, set(carried))
    backward = [f"const float d{i} = d[{i}];" for i in range(k)] + back.write(i for i in body if i.out in needed)
    for leaf, g in zip(unit.leaves, gradients, strict=True):
        text = "0.f" if g is None else back.show(g)
        if leaf.startswith("v"):
            backward += [] if g is None else [f"d{leaf} += {text};"]
        else:
            backward.append(f"{'d' + leaf[1:] if leaf.startswith('s') else 'd' + leaf} = {text};")
    vectors = [", const float (&v)[VECTORS]", ", float (&dv)[VECTORS]"] if cell.vectors else ["", ""]
    return "\n".join(
        [
            "// One unit, generated from the step of a cell. x comes from the input, u is the product with the first",
            "// state, s are the states, v weights; d is a gradient.",
            '#include "gated/math.cuh"',
            "",
            f"constexpr int GATES = {len(cell.gates)}, STATES = {k};",
            f"struct Inside {{\n  float {', '.join(f'f{i}' for i in range(len(every)))};\n}};",
            "DEV Inside compute_inside(const float (&x)[INPUTS], const float (&u)[GATES],",
            f"                          const float (&s)[STATES]{vectors[0]}) {{",
            *(f"  {line}" for line in lines),
            f"  return {{{', '.join(values)}}};\n}}",
            "DEV void update_state(float (&s)[STATES], const Inside& in) {",
            *(f"  s[{i}] = {carried[a]};" for i, a in enumerate(after)),
            "}",
            "DEV void backpropagate(float (&d)[STATES], float (&dx)[INPUTS], float (&du)[GATES], const Inside& in,",
            f"                       const float (&s)[STATES]{''.join(vectors)}) {{",
            *(f"  {line}" for line in backward),
            "}",
            "",
        ]
    )


def _differentiate(unit: Unit) -> tuple[tuple[Instruction, ...], list[Argument], list[Argument | None]]:
    """Return the code of a unit together with its derivative.

    Returns:
        The instructions, in which leaf number len(unit.leaves) + i is the gradient of state i after the step; the
        states after the step; and the gradient of each leaf, None if it has none.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def joint(leaves: list[Tensor], pulls: list[Tensor]) -> list[Tensor]:
        after, pull = torch.func.vjp(lambda *all_: tuple(a.clone() for a in run_unit(unit, all_)), *leaves)[:2]
        return [*after, *pull(tuple(pulls))]

    count = len(unit.leaves)
    values = [torch.empty(3) for _ in range(count)]  # any shape: everything is elementwise
    pulls = [torch.empty(3) for _ in unit.after]
    graph = make_fx(torch.func.functionalize(joint), late_rules(), "fake")(values, pulls).graph
    graph.eliminate_dead_code()
    body, known = Body(0, {}), dict[fx.Node, Argument]()
    for n in graph.nodes:
        if n.op == "placeholder":
            known[n] = Access(len(known), 0, ())
        elif n.op == "call_function":
            known[n] = _translate(n, known, body)
    results = [known[n] if isinstance(n, fx.Node) else None for n in operands(graph.output_node())[0]]
    after = [a for a in results[: len(unit.after)] if a is not None]
    return tuple(body.instructions), after, [None if g == 0.0 else g for g in results[len(unit.after) :]]


def _translate(n: fx.Node, known: Mapping[fx.Node, Argument], body: Body) -> Argument:
    arguments = [known[a] if isinstance(a, fx.Node) else a for a in operands(n)]
    if name_of(n) in COPIES or name_of(n) == "expand":
        value = arguments[0]
        assert isinstance(value, (Register, Access, float))
        return value
    if kind(n) == "constant":
        return constant_value(n)
    if kind(n) != "point":
        raise UnsupportedError(f"the derivative of step uses {name_of(n)}, which the gated kernels do not know")
    numbers = [float(a) if isinstance(a, (bool, int)) else a for a in arguments]
    return add_point(n, numbers, body)


def _reach(body: Sequence[Instruction], starts: Callable[[Argument], bool]) -> set[int]:
    """Return the registers that depend on some arguments."""
    reached: set[int] = set()
    for i in body:
        if any(starts(a) or (isinstance(a, Register) and a.index in reached) for a in i.arguments):
            reached.add(i.out)
    return reached


def _choose_fields(
    unit: Unit,
    early: Sequence[Instruction],
    late: Sequence[Instruction],
    after: Sequence[Argument],
    gradients: Sequence[Argument | None],
) -> list[Argument]:
    """Return what `Inside` carries to the backward pass: what the pass needs and cannot recompute cheaply."""
    at_hand = {Access(n, 0, ()) for n, leaf in enumerate(unit.leaves) if leaf[0] in "sv"}
    pulls = len(unit.leaves)
    computed = {Register(i.out) for i in late}

    def is_carried(a: Argument | None) -> bool:
        outside = isinstance(a, Access) and a.buffer < pulls and a not in at_hand
        return outside or (isinstance(a, Register) and a not in computed)

    needed = dict.fromkeys(a for a in [*(a for i in late for a in i.arguments), *gradients] if is_carried(a))
    for i in reversed(early):
        is_cheap = i.operator in _CHEAP and all(a in needed for a in i.arguments if is_carried(a))
        if is_cheap and Register(i.out) in needed:
            del needed[Register(i.out)]
    return [a for a in needed if a is not None]


def _need(body: Sequence[Instruction], ends: Iterable[Argument | None], known: set[Argument]) -> set[int]:
    """Return the registers that must be computed to derive some values from known ones."""
    needed = {a.index for a in ends if isinstance(a, Register) and a not in known}
    for i in reversed(body):
        if i.out in needed:
            needed |= {a.index for a in i.arguments if isinstance(a, Register) and a not in known}
    return needed


class _Writer:
    """Write instructions as lines of C++.

    Args:
        leaves: The names of what the code reads.
        carried: The names of values that were computed elsewhere.
    """

    def __init__(self, leaves: Mapping[int, str], carried: Mapping[Argument, str]) -> None:
        self.leaves, self.carried = leaves, carried

    def show(self, a: Argument) -> str:
        if a in self.carried:
            return self.carried[a]
        if isinstance(a, Register):
            return f"r{a.index}"
        return self.leaves[a.buffer] if isinstance(a, Access) else _show_number(a)

    def write(self, body: Iterable[Instruction]) -> list[str]:
        return [f"const float r{i.out} = {self._express(i)};" for i in body]

    def _express(self, i: Instruction) -> str:
        if i.operator not in _TEXT:
            raise UnsupportedError(f"step uses {i.operator}, which the gated kernels do not know")
        return _TEXT[i.operator].format(*(self.show(a) for a in i.arguments))


def _show_number(value: float) -> str:
    if math.isfinite(value):
        return f"{value!r}f" if value >= 0 else f"({value!r}f)"
    bits = "0x7fc00000u" if math.isnan(value) else "0x7f800000u" if value > 0 else "0xff800000u"
    return f"to_float({bits})"
