"""Run a model with its cells step by step, recording its internal values and changing them if requested."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqloom.attention.parts import Lengths
from seqloom.attention.score import Score
from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError
from seqloom.core.job import ScanJob, advance, expand_like, reverse_steps
from seqloom.core.weights import bind_weights
from seqloom.layers.recurrent.layer import Recurrent

FEEDING_GATES = {("attn_rnn", "a"), ("attn_rnn", "o")}  # `gates` returns copies of them after computing g from them
STATE_LETTERS = ("h", "c", "s2", "s3")  # the parts of a state; equations call the first two h and c


@dataclass(frozen=True)
class Clamp:
    """Hold some units of a gate or of the state at a value.

    Args:
        layer: A layer in one direction, by its name in a trace, such as "layer.l0".
        letter: A gate by its letter in the cell's equations, or "h" or "c" for the state.
        value: The value to hold.
        units: Indices of the units; all of them if empty.
        steps: The first and the last step, counted from 0; None for all steps.
    """

    layer: str
    letter: str
    value: float
    units: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None

    def covers(self, step: Tensor) -> Tensor:
        """Return whether the clamp holds at each of the given steps (B,)."""
        if self.steps is None:
            return torch.ones_like(step, dtype=torch.bool)
        return (step >= self.steps[0]) & (step <= self.steps[1])

    def apply(self, value: Tensor, step: Tensor) -> Tensor:
        """Return a value (B, ..., units) in which the clamp holds at the given steps (B,)."""
        chosen = torch.zeros(value.shape[-1], dtype=torch.bool, device=value.device)
        outside = [unit for unit in self.units if not 0 <= unit < len(chosen)]
        if outside:
            raise UserError(f"unit {outside[0]} does not exist; {self.letter} of {self.layer} has {len(chosen)} units")
        chosen[list(self.units) if self.units else slice(None)] = True
        return torch.where(expand_like(self.covers(step), value) & chosen, self.value, value)


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer in one direction, with time in the order of the input."""

    y: Tensor  # (B, T, H)
    states: tuple[Tensor, ...]  # (B, T, ...) each, after every step
    gates: dict[str, Tensor]  # by the letters of the cell's equations, (B, T, ...) each


@dataclass(eq=False)
class Recording:
    """Internal values of a model, recorded while it runs.

    Attributes:
        layers: The layers of cells in each direction, by name, with the graph of their gradients.
        states: The states of each layer step by step, in the order in which they were computed.
        attention: Attention weights (B, heads, T, S) by the name of the module.
        cells: The cell of each layer.
    """

    layers: dict[str, LayerTrace] = field(default_factory=dict)
    states: dict[str, list[State]] = field(default_factory=dict)
    attention: dict[str, Tensor] = field(default_factory=dict)
    cells: dict[str, Cell] = field(default_factory=dict)


@contextmanager
def record(model: nn.Module, clamps: Sequence[Clamp] = (), uniform_attention: bool = False) -> Iterator[Recording]:
    """Run the cells inside a model step by step within this context, and record states, gates and attention.

    Gradients flow through the recorded states, so that `torch.autograd.grad` gives dL/dh_t. The model itself does not
    change, but two threads must not use the same model at the same time.

    Args:
        model: A model or layer in eval mode.
        clamps: Values to hold at a constant.
        uniform_attention: Replace every attention by equal weights for all positions that it may see.

    Raises:
        UserError: When the model runs, if a clamp names a gate or a unit that does not exist, or a gate from which
            others are computed in a way that cannot be reproduced.

    Example:
        >>> from seqloom.tools.intervene import Clamp, record
        >>> layer = seqloom.GRU(4, 8, batch_first=True).eval()
        >>> x = torch.randn(1, 5, 4)
        >>> with record(layer, [Clamp("l0", "z", 1.0)]) as recording:
        ...     y, _ = layer(x)  # z = 1 keeps the initial state, 0
        >>> y.abs().max().item(), recording.layers["l0"].gates["z"].min().item()
        (0.0, 1.0)
    """
    recording, calls = Recording(), Counter[str]()
    with ExitStack() as stack:
        for name, module in model.named_modules():
            if isinstance(module, Recurrent):
                run = partial(_run_layer, recording, calls, name, module, tuple(clamps), uniform_attention)
                module.__dict__["forward"] = run
                stack.callback(module.__dict__.pop, "forward")
            elif has_weights(module):
                hook = partial(_keep_weights, recording, calls, name or "attention")
                stack.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
                if uniform_attention and isinstance(query := getattr(module, "q", None), nn.Module):
                    stack.enter_context(query.register_forward_hook(_return_zeros))
            elif uniform_attention and isinstance(module, Score):
                stack.enter_context(module.register_forward_hook(_return_zeros))
        yield recording
    missing = [clamp.layer for clamp in clamps if clamp.layer not in recording.layers]
    if missing:
        raise UserError(f"no layer {missing[0]!r} to clamp; the model has {', '.join(recording.layers) or 'none'}")


def has_weights(module: nn.Module) -> bool:
    """Return whether a module is an attention, which computes its weights for inspection."""
    return callable(getattr(module, "weights", None))


def compute_weights(
    module: nn.Module, x: Tensor, state: State | None = None, lengths: Lengths = None, **others: object
) -> Tensor | None:
    """Return the weights of one call; None if it has a state that the module's `weights` does not accept."""
    compute: Callable[..., Tensor] = cast(Any, module).weights
    if "state" in inspect.signature(compute).parameters:
        return compute(x, state, lengths, **others)
    return compute(x, lengths) if state is None else None


def _return_zeros(_module: nn.Module, _inputs: object, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _keep_weights(
    recording: Recording,
    calls: Counter[str],
    name: str,
    module: nn.Module,
    inputs: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    weights = compute_weights(module, *inputs, **named)
    if weights is not None:
        recording.attention[_number_call(calls, name)] = weights.detach()


def _number_call(calls: Counter[str], name: str) -> str:
    calls[name] += 1
    return name if calls[name] == 1 else f"{name}#{calls[name]}"


def _run_layer(
    recording: Recording,
    calls: Counter[str],
    name: str,
    layer: Recurrent,
    clamps: tuple[Clamp, ...],
    uniform: bool,
    input: Tensor,
    hx: Tensor | State | None = None,
    lengths: Tensor | Sequence[int] | None = None,
    *,
    state: Tensor | State | None = None,
    reset: Tensor | None = None,
    timespans: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """Do what `Recurrent.forward` does, step by step."""
    label = _number_call(calls, name)
    ends = ["", "_reverse"][: 1 + layer.bidirectional]
    cells = iter(range(len(layer.cells)))

    def run(
        cell: Cell, job: ScanJob, kernel: str = "auto", values: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, State]:
        i = next(cells)
        end = ends[i % len(ends)]
        key = ".".join(part for part in (label, f"l{i // len(ends)}{end}") if part)
        mine = [clamp for clamp in clamps if clamp.layer == key]
        bound = bind_weights(cell, values) if values else cell
        if uniform:
            bound = _make_uniform(bound)
        y, recording.states[key], recording.layers[key] = run_steps(bound, job, mine, is_reversed=bool(end))
        recording.cells[key] = cell
        states = recording.states[key]
        return y, states[-1] if states else job.state

    return layer.run_with(run, input, hx if state is None else state, lengths, reset=reset, timespans=timespans)


def _make_uniform(cell: Cell) -> Cell:
    """Return a view of a cell with equal attention weights; only attn_rnn has attention inside a step."""
    if cell.name != "attn_rnn":
        return cell
    query = {name: torch.zeros_like(cast(Tensor, getattr(cell, name))) for name in ("weight_q", "bias_q")}
    return bind_weights(cell, query)


def run_steps(
    cell: Cell, job: ScanJob, clamps: Sequence[Clamp], is_reversed: bool
) -> tuple[Tensor, list[State], LayerTrace]:
    """Run a cell over a job; return outputs (B, T, H), the states of each step, and all values in the input's order."""
    x, state, now = cell.project(job.x), job.state, job.per_step()
    start = cell.start(job.x) if job.reset is not None else ()
    ys: list[Tensor] = []
    states: list[State] = []
    gates: list[dict[str, Tensor]] = []
    inner = _watch_gates(cell, clamps, gates, x, state)
    last = torch.full((x.shape[0],), x.shape[1], device=x.device) if job.lengths is None else job.lengths
    for t in range(x.shape[1]):
        step = last - 1 - t if is_reversed else torch.full_like(last, t)  # in the order of the input
        inner.__dict__["_now"] = t, step
        at = {name: value[t] for name, value in now.items()}
        y, state = advance(inner, x[:, t], state, at, start, job.mask)
        if len(gates) == t:  # a step that does not call gates() itself
            inner.gates(x[:, t], states[-1] if states else job.state)
        state = tuple(_clamp_state(part, i, clamps, step) for i, part in enumerate(state))
        ys.append(_read_output(cell, y, state, at.get("valid")))
        states.append(state)
    letters = {letter: torch.stack([g[letter] for g in gates], 1) for letter in (gates[0] if gates else ())}
    y = torch.stack(ys, 1) if ys else x.new_zeros(x.shape[0], 0, cell.output_size)
    turn = partial(reverse_steps, lengths=job.lengths) if is_reversed else (lambda t: t)
    all_states = tuple(turn(torch.stack(part, 1)) for part in zip(*states, strict=True))
    return y, states, LayerTrace(turn(y), all_states, {letter: turn(g) for letter, g in letters.items()})


def _clamp_state(part: Tensor, index: int, clamps: Sequence[Clamp], step: Tensor) -> Tensor:
    for clamp in clamps:
        if clamp.letter == STATE_LETTERS[index]:
            part = clamp.apply(part, step)
    return part


def _read_output(cell: Cell, y: Tensor, state: State, valid: Tensor | None) -> Tensor:
    """Return the output as a function of the recorded state, so that dL/dh_t includes the path through the output."""
    output = cell.output(state)
    return output if valid is None else torch.where(expand_like(valid, output), output, torch.zeros_like(y))


def _watch_gates(cell: Cell, clamps: Sequence[Clamp], gates: list[dict[str, Tensor]], x: Tensor, state: State) -> Cell:
    """Return a view of a cell whose `gates` records its values and applies the clamps."""
    view = copy.copy(cell)
    plain: Callable[..., dict[str, Tensor]] = cell.gates
    letters = [clamp for clamp in clamps if clamp.letter not in STATE_LETTERS[: len(state)]]
    fixed = [(clamp, _fix_gate(cell, clamp, x, state)) for clamp in letters]

    def compute(x_t: Tensor, before: State, *more: Tensor | None, **extra: Tensor) -> dict[str, Tensor]:
        t, step = view.__dict__["_now"]
        values = plain(x_t, before, *more, **extra)
        for clamp, recompute in fixed:
            if recompute is not None:  # other gates follow from this one
                others = recompute(x_t, before, *more, **extra)
                held = clamp.covers(step)
                values = {n: torch.where(expand_like(held, v), others[n], v) for n, v in values.items()}
            values = values | {clamp.letter: clamp.apply(values[clamp.letter], step)}
        if len(gates) == t:  # a Runge-Kutta step computes its gates several times
            gates.append(values)
        return values

    view.__dict__["gates"] = compute
    return view


def _fix_gate(cell: Cell, clamp: Clamp, x: Tensor, state: State) -> Callable[..., dict[str, Tensor]] | None:
    """Return a function that computes the gates with one of them held; None if no other gate follows from it."""
    if not x.shape[1]:
        return None
    with torch.enable_grad():
        values = cell.gates(x[:, 0].detach(), state)
        if clamp.letter not in values:
            known = ", ".join([*values, *STATE_LETTERS[: len(state)]])
            raise UserError(f"{clamp.layer} has no {clamp.letter!r} to clamp; its letters are {known}")
        others = [v.sum() for letter, v in values.items() if letter != clamp.letter and v.requires_grad]
        mine, slope = values[clamp.letter], None
        if mine.requires_grad and others:
            (slope,) = torch.autograd.grad(torch.stack(others).sum(), mine, allow_unused=True)
    feeds = slope is not None or (cell.name, clamp.letter) in FEEDING_GATES
    if not feeds and _is_read(cell, clamp.letter, values, x[:, 0], state):
        return None
    if cell.name != "gru" or clamp.letter != "r":
        raise UserError(f"{clamp.letter} of {cell.name} cannot be clamped: other values are computed from it")
    return _hold_reset_gate(cell, clamp)


@torch.no_grad()
def _is_read(cell: Cell, letter: str, values: dict[str, Tensor], x: Tensor, state: State) -> bool:
    """Return whether a step reads this gate from `gates`, so that another value changes the next state."""
    state = tuple(torch.full_like(part, 0.5) for part in state)  # a gate times a state of 0 would have no effect
    view, ends = copy.copy(cell), []
    for value in (0.0, 1.0):
        view.__dict__["gates"] = lambda *_, held=value, **__: values | {letter: torch.full_like(values[letter], held)}
        ends.append(view.step(x, state)[1])
    return not all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def _hold_reset_gate(cell: Cell, clamp: Clamp) -> Callable[..., dict[str, Tensor]]:
    """Return the gates of a GRU whose reset gate is sigmoid(logit(value)): no weights, and the logit as its input."""
    if not 0 <= clamp.value <= 1:
        raise UserError(f"r is a gate from 0 to 1 and cannot be clamped to {clamp.value}")
    rows = torch.tensor(clamp.units or range(cell.hidden_size))
    logit = torch.tensor(clamp.value).logit().clamp(-1e4, 1e4)
    changed = {}
    for name in ("weight_hh", "bias_hh"):
        if (tensor := cast(Tensor | None, getattr(cell, name))) is not None:
            changed[name] = tensor.index_fill(0, rows.to(tensor.device), 0.0)
    view = bind_weights(cell, changed)

    def compute(x: Tensor, state: State, *more: Tensor | None, **extra: Tensor) -> dict[str, Tensor]:
        held = x.index_fill(-1, rows.to(x.device), float(logit))
        return cast(Callable[..., dict[str, Tensor]], view.gates)(held, state, *more, **extra)

    return compute
