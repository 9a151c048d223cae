"""Every step of a layer, looked at from inside."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seqloom.core.cell import Cell, State
from seqloom.core.job import Job, advance, restart, turn
from seqloom.core.weights import bound
from seqloom.layers.recurrent.layer import Recurrent


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer in one direction; time runs as in the input, whichever way the layer reads."""

    y: Tensor  # (B, T, H)
    states: tuple[Tensor, ...]  # (B, T, ...) each: after every step
    gates: dict[str, Tensor]  # by the letters of the cell's equations, (B, T, ...) each


@dataclass(frozen=True, eq=False)
class Trace:
    """What `layer(...)` returns, and what happened on the way."""

    output: Any
    state: Any
    layers: dict[str, LayerTrace] = field(default_factory=dict)  # "l0", "l0_reverse", "l1", ...


def trace(layer: Recurrent, *args: Any, **kwargs: Any) -> Trace:
    """Run the layer step by step and keep every state, gate and attention weight."""
    if not isinstance(layer, Recurrent):
        raise TypeError(f"trace takes a layer of a cell, such as GRU or AttnRNN, got a {type(layer).__name__}")
    found: dict[str, LayerTrace] = {}
    ends = ["", "_reverse"][: 1 + layer.bidirectional]
    calls = iter(range(len(layer.cells)))

    def watched(cell: Cell, job: Job, kernel: str = "auto", values: Any = None) -> tuple[Tensor, State]:
        i = next(calls)
        seen = _steps(bound(cell, values) if values else cell, job)
        end = ends[i % len(ends)]
        found[f"l{i // len(ends)}{end}"] = _turned(seen, job.lengths) if end else seen
        return seen.y, tuple(s[:, -1] for s in seen.states)

    output, state = layer.run_with(watched, *args, **kwargs)
    return Trace(output, state, found)


def _steps(cell: Cell, job: Job) -> LayerTrace:
    x, state, now = cell.project(job.x), job.state, job.per_step()
    start = cell.start(job.x) if job.reset is not None else ()
    known = inspect.signature(cell.gates).parameters
    ys, states, gates = [], [], []
    for t in range(x.shape[1]):
        at = {n: v[t] for n, v in now.items()}
        extra = {n: v for n, v in (("mask", job.mask), ("dt", at.get("dt"))) if v is not None and n in known}
        if "reset" in at:
            state = restart(at["reset"], start, state)
        gates.append(cell.gates(x[:, t], state, **extra))
        y, state = advance(cell, x[:, t], state, at, start, job.mask)
        ys.append(y)
        states.append(state)
    letters = {name: torch.stack([g[name] for g in gates], 1) for name in gates[0]}
    return LayerTrace(torch.stack(ys, 1), tuple(torch.stack(s, 1) for s in zip(*states, strict=True)), letters)


def _turned(seen: LayerTrace, lengths: Tensor | None) -> LayerTrace:
    gates = {name: turn(g, lengths) for name, g in seen.gates.items()}
    return LayerTrace(turn(seen.y, lengths), tuple(turn(s, lengths) for s in seen.states), gates)
