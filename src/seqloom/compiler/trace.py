"""Trace a cell's step and its derivative into one graph of torch's operators.

The graph has the batch as a dimension of a large prime size: every size that is divisible by the prime is the batch,
whatever views did to it. The derivative comes from autograd, so no rule of differentiation is written here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, fx

from seqloom.compiler.draws import Draw, hoist_draws
from seqloom.compiler.fingerprint import list_settings
from seqloom.compiler.functions import Derivative, Differentiated, FunctionRecorder, is_own
from seqloom.compiler.lines import FOREIGN_TENSOR, Lines, explain_failure
from seqloom.compiler.nodes import (
    ROWS,
    UnsupportedError,
    check_no_noise,
    constant_value,
    kind,
    line_of,
    operands,
)
from seqloom.compiler.rewrites import embed_constants, gather_early_terms, read_pieces, split_concatenations
from seqloom.compiler.rules import RULES, early_rules, late_rules
from seqloom.compiler.watch import Seen, watch
from seqloom.core.cell import Cell, State
from seqloom.core.job import ScanJob, advance
from seqloom.core.weights import bind_weights, weights

AGAIN = 2  # the batch of a second trace, without gradients, which must give the same graph
aten = torch.ops.aten
FAKE_TENSOR_LOG = "torch._subclasses.fake_tensor"


class Extras(NamedTuple):
    """What a job has besides x and state; each is an input of the traced step."""

    reset: bool = False
    dt: bool = False
    mask: bool = False
    keep: bool = False

    @classmethod
    def of(cls, job: ScanJob) -> Extras:
        """Return which extras a job has."""
        return cls(job.reset is not None, job.dt is not None, job.mask is not None, bool(job.keep))


@dataclass
class JointGraph:
    """A joint graph: a step, and the gradients of its inputs from those of its outputs.

    Attributes:
        graph: The graph.
        x: The step's input.
        states: The states before the step.
        starts: The states after a reset; empty without resets.
        others: The placeholders of `reset`, `dt`, `mask`, `keep_i` and `draw_i` by name.
        weights: The placeholders of the weights by name.
        dy: The gradient of the output.
        dafter: The gradients of the states after the step.
        y: The output.
        after: The states after the step.
        dx: The gradient of x; None if x has no influence.
        dbefore: The gradients of the states before the step.
        dstarts: The gradients of the starts.
        ddt: The gradient of dt.
        dweights: The gradients of the weights by name.
        seen: The source files that were run and the values that were read, of the user's code.
        draws: The random numbers that the step draws, in order; each is an input `draw_i`.
        has_functions: Whether a part of the derivative was written by the user.
    """

    graph: fx.Graph
    x: fx.Node
    states: list[fx.Node]
    starts: list[fx.Node]
    others: dict[str, fx.Node]
    weights: dict[str, fx.Node]
    dy: fx.Node
    dafter: list[fx.Node]
    y: fx.Node
    after: list[fx.Node]
    dx: fx.Node | None
    dbefore: list[fx.Node | None]
    dstarts: list[fx.Node | None]
    ddt: fx.Node | None
    dweights: dict[str, fx.Node | None]
    seen: Seen
    draws: Sequence[Draw] = ()
    has_functions: bool = False


def step_tensors(cell: Cell) -> dict[str, Tensor]:
    """Return every tensor that a step may read, by name: parameters, buffers and plain attributes."""
    own = {name: w for name, w in weights(cell).items() if not name.startswith("initial_")}
    for path, module in cell.named_modules(remove_duplicate=False):
        prefix = f"{path}." if path else ""
        own |= {prefix + name: v for name, v in module.__dict__.items() if isinstance(v, Tensor)}
    return own


def trace(cell: Cell, x: Tensor, state: State, extras: Extras, projects: bool = False) -> JointGraph:
    """Trace a cell.

    Args:
        cell: The cell.
        x: (B, T, ...), what `cell.project` returned, or its input; only shape and dtype matter.
        state: The states before a step, for their shapes.
        extras: What a job has beside x and state.
        projects: Whether x is the input of `cell.project`, which is traced too.

    Raises:
        UnsupportedError: If the step cannot be traced, with the reason and the line of the step.
    """
    own = step_tensors(cell)
    buffers = {n for n, _ in cell.named_buffers(remove_duplicate=False) if not own[n].requires_grad}
    inputs = _Inputs(x, state, own, extras, cell.output_size, buffers)
    step = _make_step(cell, inputs, projects)
    recorder, given = FunctionRecorder(), [torch.zeros_like(t) for t in inputs.allocate(AGAIN)]
    plain = _trace_plain(partial(step, recorder=recorder), inputs.allocate(ROWS), has_gradients=True)
    again = _trace_plain(partial(step, recorder=FunctionRecorder()), inputs.allocate(AGAIN))
    embed_constants(plain)
    embed_constants(again)
    _check_results(plain, len(state), inputs)
    draws = inputs.hoist(plain, ROWS)
    seen = _watch_step(cell, step, given, bool(recorder.calls))
    if inputs.hoist(again, AGAIN) != draws:
        raise UnsupportedError("step draws other random numbers for another batch size or without gradients")
    _compare(plain, again)
    inputs.add_draws(draws, x.dtype)
    if split_concatenations(plain, inputs.late):  # new nodes have no shapes yet
        plain = _trace_plain(plain, inputs.allocate(ROWS), lines=plain)
    gather_early_terms(plain, inputs.late)
    return replace(
        _trace_joint(plain, inputs, seen, recorder.calls | RULES), draws=draws, has_functions=bool(recorder.calls)
    )


@contextmanager
def _silence(name: str) -> Iterator[None]:
    """Silence a logger: a failed trace is reported in one line, or its error is raised by the loop."""
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


class _Inputs:
    """The order of a step's inputs: x, states, starts, reset, dt, mask, keeps, weights."""

    def __init__(
        self, x: Tensor, state: State, own: Mapping[str, Tensor], extras: Extras, output: int, buffers: set[str]
    ) -> None:
        rows: dict[str, tuple[torch.Size, torch.dtype]] = {"x": (x.shape[2:], x.dtype)}
        one = torch.Size()
        rows |= {f"state_{i}": (s.shape[1:], s.dtype) for i, s in enumerate(state)}
        if extras.reset:
            rows |= {f"start_{i}": (s.shape[1:], s.dtype) for i, s in enumerate(state)}
            rows["reset"] = one, torch.bool
        if extras.dt:
            rows["dt"] = one, x.dtype
        if extras.mask:
            rows["mask"] = torch.Size([output]), x.dtype
        if extras.keep:
            rows |= {f"keep_{i}": (s.shape[1:], s.dtype) for i, s in enumerate(state)}
        self.rows, self.own, self.states = rows, dict(own), len(state)
        self.late = set(range(1, 1 + len(state)))
        self.buffers = {f"weight {name}" for name in buffers}

    @property
    def names(self) -> list[str]:
        """The names of all inputs."""
        return [*self.rows, *(f"weight {name}" for name in self.own)]

    @property
    def fixed(self) -> set[int]:
        """The indices of the inputs without a gradient."""
        return {i for i, name in enumerate(self.names) if name in self.buffers or name.startswith("draw_")}

    def hoist(self, plain: fx.GraphModule, batch: int) -> list[Draw]:
        """Make the random numbers that a step draws its last inputs before the weights."""
        last = len(self.rows) - 1
        return hoist_draws(plain, batch, self.rows["x"][1], lambda graph: list(graph.nodes)[last])

    def add_draws(self, draws: Sequence[Draw], dtype: torch.dtype) -> None:
        """Add the inputs that `hoist` has added to a step."""
        self.rows |= {f"draw_{i}": (torch.Size(draw.sizes), dtype) for i, draw in enumerate(draws)}

    def allocate(self, batch: int) -> list[Tensor]:
        """Allocate every input as a separate tensor: make_fx merges inputs that are the same object."""
        rows = [torch.empty((batch, *shape), dtype=dtype) for shape, dtype in self.rows.values()]
        return rows + [torch.empty(w.shape, dtype=w.dtype) for w in self.own.values()]

    def sort(self, values: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the rows and the weights by name."""
        named = dict(zip(self.names, values, strict=True))
        return {n: named[n] for n in self.rows}, {n: named[f"weight {n}"] for n in self.own}


def _make_step(cell: Cell, inputs: _Inputs, projects: bool) -> Callable[..., tuple[Tensor, ...]]:
    """Return one step of a scan as a function of its inputs: projection, reset, the cell's step and zoneout."""
    is_projected = projects and type(cell).project is not Cell.project

    def step(*values: Tensor, recorder: FunctionRecorder | None = None) -> tuple[Tensor, ...]:
        rows, own = inputs.sort(values)
        view = bind_weights(cell, own)
        k = inputs.states
        state = tuple(rows[f"state_{i}"] for i in range(k))
        start = tuple(rows[f"start_{i}"] for i in range(k) if f"start_{i}" in rows)
        now = {n: v for n, v in rows.items() if n in ("reset", "dt") or n.startswith("keep_")}
        before, lines = list_settings(view), Lines(is_traced=recorder is not None)
        with fx.traceback.preserve_node_meta(), lines, recorder.record(lines) if recorder else nullcontext():
            x = view.project(rows["x"].unsqueeze(1)).squeeze(1) if is_projected else rows["x"]
            y, after = advance(view, x, state, now, start, rows.get("mask"))
        changed = [n for n, v in list_settings(view).items() if n not in before or before[n] != v]
        if changed:
            raise UnsupportedError(f"step changes the cell's attribute {changed[0]}")
        return y, *after

    return step


def _trace_plain(
    step: Callable[..., object],
    inputs: list[Tensor],
    lines: fx.GraphModule | None = None,
    has_gradients: bool = False,
) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    function = torch.func.functionalize(step) if lines is None else fx.Interpreter(lines).run
    try:
        with torch.set_grad_enabled(has_gradients), _silence(FAKE_TENSOR_LOG):
            if lines is None:
                return make_fx(function, early_rules(), "fake")(*inputs)
            with fx.traceback.preserve_node_meta():
                return make_fx(function, {}, "fake")(*inputs)
    except UnsupportedError:
        raise
    except Exception as error:  # the user's code or torch may raise anything; the loop then runs the cell instead
        raise UnsupportedError(explain_failure("step", error)) from error


def _watch_step(cell: Cell, step: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], has_functions: bool) -> Seen:
    """Run a step that has been traced, and return what the user's code ran and read: faster than watching a trace.

    Args:
        cell: The cell.
        step: Its step.
        inputs: Its inputs.
        has_functions: Whether the step calls functions with a backward of the user's, which runs too.
    """
    try:
        if has_functions:
            _check_zero_gradients(step, inputs)
        return watch(lambda: _pull(step, inputs, 1.0) if has_functions else step(*inputs), cell)[1]
    except UnsupportedError:
        raise
    except Exception as error:  # whatever the user's code raises for these values
        raise UnsupportedError(explain_failure("step", error)) from error


def _pull(step: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], gradient: float) -> list[Tensor]:
    """Return the gradients of a step's inputs if every number of its results has the same gradient."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in inputs]
        results = [r for r in step(*leaves) if r.requires_grad]
        leaves = [t for t in leaves if t.requires_grad]
        if not results:
            return []
        pulls = [torch.full_like(r, gradient) for r in results]
        found = torch.autograd.grad(results, leaves, pulls, allow_unused=True)
    return [g for g in found if g is not None]


def _check_zero_gradients(step: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor]) -> None:
    """Check that gradients of zero stay zero: the loop does not call the backward of what has no influence."""
    random = [torch.randn_like(t) if t.is_floating_point() else t for t in inputs]
    if any(bool(((g != 0) & ~g.isnan()).any()) for g in _pull(step, random, 0.0)):
        raise UnsupportedError(
            "step calls an autograd.Function whose backward returns a gradient where that of its output is 0"
        )


def _check_results(plain: fx.GraphModule, k: int, inputs: _Inputs) -> None:
    nodes = list(plain.graph.nodes)
    for n in nodes:
        if n.op == "call_function" and n.target is aten.copy_.default and operands(n)[0].op == "placeholder":
            name, place = inputs.names[nodes.index(operands(n)[0])], line_of(n) or line_of(operands(n)[1])
            raise UnsupportedError(f"step changes {name.removeprefix('weight ')} in place{place}")
        if n.op == "get_attr" and isinstance(getattr(plain, n.target), Tensor):  # not a random generator
            raise UnsupportedError(f"step {FOREIGN_TENSOR}")
    y, *after = operands(plain.graph.output_node())[0]
    for i, node in enumerate(after):
        shape, dtype = inputs.rows[f"state_{i}"]
        value = node.meta["val"]
        if tuple(value.shape) != (ROWS, *shape) or value.dtype != dtype:
            shapes = [", ".join(["B", *map(str, sizes)]) for sizes in (value.shape[1:], shape)]
            raise UnsupportedError(
                f"step returns state {i} as ({shapes[0]}) in {_name(value.dtype)}; "
                f"it was ({shapes[1]}) in {_name(dtype)}"
            )
    if len(after) != k or y.meta["val"].shape[0] != ROWS:
        raise UnsupportedError(
            "step returns another number of states, or an output without the batch as first dimension"
        )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _compare(one: fx.GraphModule, two: fx.GraphModule) -> None:
    """Check that a trace with another batch size gives the same graph: the batch size must only be used as a size."""
    mine, theirs = list(one.graph.nodes), list(two.graph.nodes)
    calls = [[n.target for n in nodes if n.op == "call_function"] for nodes in (mine, theirs)]
    if calls[0] != calls[1] or len(mine) != len(theirs):
        raise UnsupportedError("step does something else for another batch size or without gradients")
    for a, b in zip(mine, theirs, strict=True):
        numbers = [_numbers((operands(n), n.kwargs)) for n in (a, b)]
        for p, q in zip(*numbers, strict=True):
            is_batch = isinstance(p, int) and p and p % ROWS == 0
            if is_batch and (q != p // ROWS * AGAIN or kind(a) not in ("move", "constant")):
                raise UnsupportedError(f"step computes with the batch size{line_of(a)}")
            if not is_batch and q != p:
                raise UnsupportedError(
                    f"step uses a number that is random or depends on the batch size or on gradients, {p} and then "
                    f"{q}{line_of(a)}"
                )


def _numbers(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return [n for v in value for n in _numbers(v)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in _numbers(v)]
    return [value] if isinstance(value, (bool, int, float)) else []


def _check_derivative(graph: fx.Graph) -> None:
    """Check that the backward of a user's function neither draws random numbers nor reads other tensors."""
    for n in graph.nodes:
        if n.op == "get_attr":
            raise UnsupportedError(f"step {FOREIGN_TENSOR}")
        if n.op == "call_function":
            check_no_noise(n)


def _is_zero(gradient: fx.Node | None) -> bool:
    """Return whether an input has no influence: autograd gives None then, and vjp zeros."""
    return gradient is not None and kind(gradient) == "constant" and constant_value(gradient) == 0


def _trace_joint(plain: fx.GraphModule, inputs: _Inputs, seen: Seen, functions: Mapping[str, Derivative]) -> JointGraph:
    """Trace the step together with its vector-Jacobian product."""
    from torch._subclasses.functional_tensor import dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    results = [n.meta["val"] for n in operands(plain.graph.output_node())[0]]
    gradients = [torch.empty(r.shape, dtype=r.dtype) for r in results]

    def joint(values: list[Tensor], pulls: list[Tensor]) -> list[Tensor | None]:
        floats = [i for i, v in enumerate(values) if v.is_floating_point() and i not in inputs.fixed]
        every = list(values)
        for i in floats:
            every[i] = values[i].detach().requires_grad_()
        with torch.enable_grad(), fx.traceback.preserve_node_meta():  # keeps the lines of the user's code
            out = Differentiated(plain, functions).run(*every)
        pairs = [(o, g) for o, g in zip(out, pulls, strict=True) if o.requires_grad]
        ends, leaves = [o for o, _ in pairs], [every[i] for i in floats]
        found = torch.autograd.grad(ends, leaves, [g for _, g in pairs], allow_unused=True) if pairs else ()
        grads = dict(zip(floats, found, strict=False))
        return [*out, *(grads.get(i) for i in range(len(values)))]

    try:
        # autograd's own formulas write in place, hence functionalize
        with torch.inference_mode(False), torch.enable_grad():
            traced = make_fx(dispatch_functionalize(joint), late_rules(), "fake")(inputs.allocate(ROWS), gradients)
    except UnsupportedError:
        raise
    except Exception as error:
        raise UnsupportedError(explain_failure("the derivative of step", error)) from error
    embed_constants(traced)  # of the backward of a user's function
    graph = traced.graph
    for n in list(graph.nodes):
        if n.target in (aten.detach.default, aten.alias.default):  # gradients are known by now
            n.replace_all_uses_with(operands(n)[0])
        elif n.op == "call_function" and is_own(n.target):
            for user in n.users:
                user.replace_all_uses_with(operands(n)[2][operands(user)[1]])
    graph.eliminate_dead_code()
    _check_derivative(graph)
    read_pieces(graph)
    holders = [n for n in graph.nodes if n.op == "placeholder"]
    for node, name in zip(holders, inputs.names, strict=False):
        node.name = name.replace("weight ", "w_").replace(".", "_")
        node.meta["title"] = name.removeprefix("weight ")
    count, k = len(inputs.names), inputs.states
    named = dict(zip(inputs.names, holders, strict=False))
    outputs = list(operands(graph.output_node())[0])
    grads = {n: None if _is_zero(g) else g for n, g in zip(inputs.names, outputs[1 + k :], strict=True)}
    starts = [f"start_{i}" for i in range(k) if f"start_{i}" in named]
    return JointGraph(
        graph,
        named["x"],
        [named[f"state_{i}"] for i in range(k)],
        [named[n] for n in starts],
        {n: v for n, v in named.items() if n in ("reset", "dt", "mask") or n.startswith(("keep_", "draw_"))},
        {n: named[f"weight {n}"] for n in inputs.own},
        holders[count],
        holders[count + 1 :],
        outputs[0],
        outputs[1 : 1 + k],
        grads["x"],
        [grads[f"state_{i}"] for i in range(k)],
        [grads[n] for n in starts],
        grads.get("dt"),
        {n: grads[f"weight {n}"] for n in inputs.own},
        seen,
    )
