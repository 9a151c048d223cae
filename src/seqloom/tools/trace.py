"""Record the internal values of a layer: states and gates of every step, attention weights of every head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor, nn

from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserError, UserTypeError
from seqloom.core.job import ScanJob
from seqloom.core.weights import bind_weights
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.intervene import LayerTrace, compute_weights, has_weights, run_steps

Entry = TypeVar("Entry")


@dataclass(frozen=True, eq=False)
class Trace:
    """The results of a call, with the internal values."""

    output: Any
    state: Any
    layers: dict[str, LayerTrace] = field(default_factory=dict)  # "l0", "l0_reverse", "l1", ...
    attention: dict[str, Tensor] = field(default_factory=dict)  # "layers.0.attention": (B, heads, T, S), ...


def trace(layer: nn.Module, *args: object, only: Sequence[str] | None = None, **kwargs: object) -> Trace:
    """Run a layer and record its internal values: states, gates and attention weights.

    Args:
        layer: A layer of a cell, an attention, or a module that contains some, such as a Transformer or a model.
        *args: Arguments of the layer.
        only: Names of layers and attentions to record, such as ["layer.l0", "layers.2.attention"]; a name stands for
            everything below it. The others are neither run twice nor recorded. Default: all.
        **kwargs: Keyword arguments of the layer.

    Returns:
        The results of the call. `layers` has every layer of a cell, step by step: outputs y (B, T, H), states and gates
        (B, T, ...) each. `attention` has the weights of every attention, (B, heads, T, S) for T queries and S keys.
        Both are by the name of the module inside `layer`. A module that is called again has `#2` after its name. If
        `layer` is an attention itself, its weights are under "attention".

    Modules inside `layer` are run a second time to record them. In training mode their dropout is then drawn twice, so
    call `layer.eval()` first.

    Raises:
        TypeError: If there is neither a cell nor an attention inside.
        ValueError: If a name of `only` does not exist.

    Example:
        >>> result = seqloom.trace(seqloom.Transformer(8, heads=2), torch.randn(3, 5, 8))
        >>> result.attention["layers.0.attention"].shape
        torch.Size([3, 2, 5, 5])
    """
    if isinstance(layer, Recurrent):
        result = _trace_cells(layer, *args, **kwargs)
        return result if only is None else replace(result, layers=_choose(result.layers, only))
    modules = {name or "attention": module for name, module in layer.named_modules()}
    watched = {name: m for name, m in modules.items() if isinstance(m, Recurrent) or has_weights(m)}
    if not watched:
        raise UserTypeError(f"trace takes a layer with a cell or an attention inside, got a {type(layer).__name__}")
    if only is not None:
        watched = {
            name: m for name, m in watched.items() if any(_is_below(o, name) or _is_below(name, o) for o in only)
        }
    layers: dict[str, LayerTrace] = {}
    attention: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def watch(name: str, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[name] += 1
        label = name if calls[name] == 1 else f"{name}#{calls[name]}"
        if isinstance(module, Recurrent):
            inner = _trace_cells(module, *inputs, **named)
            layers.update({f"{label}.{key}": one for key, one in inner.layers.items()})
        elif (weights := compute_weights(module, *inputs, **named)) is not None:
            attention[label] = weights

    with ExitStack() as stack:
        for name, module in watched.items():
            stack.enter_context(module.register_forward_pre_hook(partial(watch, name), with_kwargs=True))
        called = layer(*args, **kwargs)
    output, state = called if isinstance(called, tuple) and len(called) == 2 else (called, None)
    if only is not None:
        chosen = _choose(dict.fromkeys([*layers, *attention]), only)
        layers = {name: one for name, one in layers.items() if name in chosen}
        attention = {name: one for name, one in attention.items() if name in chosen}
    return Trace(output, state, layers, attention)


def _is_below(name: str, other: str) -> bool:
    return name == other or name.startswith((f"{other}.", f"{other}#"))


def _choose(entries: Mapping[str, Entry], only: Sequence[str]) -> dict[str, Entry]:
    """Return the entries with the given names or below them."""
    for name in only:
        if not any(_is_below(entry, name) for entry in entries):
            raise UserError(f"only: there is no {name!r} to look at; the names of this module come from a full trace")
    return {name: entry for name, entry in entries.items() if any(_is_below(name, o) for o in only)}


def _trace_cells(
    layer: Recurrent,
    *args: Any,  # noqa: ANN401  # forwarded to run_with
    **kwargs: Any,  # noqa: ANN401  # forwarded too
) -> Trace:
    """Run a layer of a cell step by step."""
    layers: dict[str, LayerTrace] = {}
    ends = ["", "_reverse"][: 1 + layer.bidirectional]
    calls = iter(range(len(layer.cells)))

    def record(
        cell: Cell, job: ScanJob, kernel: str = "auto", values: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, State]:
        i = next(calls)
        end = ends[i % len(ends)]
        bound = bind_weights(cell, values) if values else cell
        y, states, layers[f"l{i // len(ends)}{end}"] = run_steps(bound, job, (), bool(end))
        return y, states[-1]

    if "state" in kwargs:
        kwargs["hx"] = kwargs.pop("state")
    output, state = layer.run_with(record, *args, **kwargs)
    return Trace(output, state, layers)
