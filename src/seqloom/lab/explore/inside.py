"""States, gates, attention and gradient flow of one input, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.job import reverse_steps
from seqloom.lab.explore.contributions import Target, read_target
from seqloom.lab.explore.subject import LabelledInput, ModelOutputs, Subject
from seqloom.tools.intervene import STATE_LETTERS, Clamp, Recording, record

MAX_ATTENTION = 4_000_000  # weights of one attention matrix over all heads that are kept
MAX_UNITS = 2_048  # rows of a heat map
GROUPED_SIZE = 400_000  # numbers in a state up to which units are grouped, which takes a second
GROUPS = 6
Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class LayerView:
    """One layer in one direction."""

    name: str  # the name, such as "layer.l0"
    cell: str  # the name of the cell
    equations: str  # the cell's equations
    # Values (T, units) by letter, states first. Values with more dimensions have one entry per part.
    tensors: dict[str, Array] = field(default_factory=dict)
    flow: Array | None = None  # |dL/dh_t| for each step (T,), where L is the explained output; None without gradients
    # (T, units): dL/dh_t times the change of h at step t: the effect of each unit's change on the output.
    effect: Array | None = None
    # The group of each unit: units that are active together (non-negative matrix factorisation).
    groups: list[int] = field(default_factory=list)

    def rank_units(self) -> list[int]:
        """Return all units, those with the largest effect on the output first."""
        size = self.effect if self.effect is not None else self.tensors["h"]
        order: list[int] = np.argsort(-np.abs(size).sum(0), kind="stable").tolist()
        return order


@dataclass(eq=False)
class InsideView:
    """What happened inside a model for one input."""

    outputs: ModelOutputs
    layers: dict[str, LayerView]
    attention: dict[str, Array]  # (heads, T, S)
    notes: list[str] = field(default_factory=list)


def look_inside(
    subject: Subject,
    example: LabelledInput,
    target: Target | None,
    clamps: Sequence[Clamp] = (),
    uniform_attention: bool = False,
    wanted: Tensor | None = None,
) -> InsideView:
    """Run a model on one example and return what happened inside.

    Args:
        target: The output whose gradients are computed; None for none.
        wanted: (1, S) tokens of a translation.
    """
    notes: list[str] = []
    with torch.enable_grad(), record(subject.network, clamps, uniform_attention) as recording:
        outputs = subject.compute_outputs(example.batch, wanted)
        gradients = {} if target is None else _differentiate(recording, outputs, target)
    outputs = replace(outputs, values=outputs.values.detach())
    layers = {name: _view_layer(name, recording, gradients.get(name)) for name in recording.layers}
    attention: dict[str, Array] = {}
    for name, weights in recording.attention.items():
        if weights[0].numel() > MAX_ATTENTION:
            size = " x ".join(f"{n:,}" for n in weights.shape[1:])
            notes.append(f"The attention of {name} has {size} weights, too many for a page; try a shorter input.")
        else:
            attention[name] = weights[0].float().numpy()
    alignment = _align(subject, example, outputs)
    if alignment is not None:
        attention["alignment"] = alignment
    return InsideView(outputs, layers, attention, notes)


def _align(subject: Subject, example: LabelledInput, outputs: ModelOutputs) -> Array | None:
    """Return the attention of a recurrent decoder to its source, (1, T, S)."""
    ids = outputs.wanted
    can_align = subject.kind.writes and hasattr(subject.network, "align") and subject.task.encoding is not None
    if not can_align or ids is None:
        return None
    weights = subject.network.align(example.batch.x, ids[:, :-1], example.batch.lengths)  # type: ignore[operator]
    if weights is None:
        return None
    weights = weights if weights.ndim == 4 else weights.unsqueeze(1)
    return weights[0].float().detach().numpy()


def _differentiate(recording: Recording, outputs: ModelOutputs, target: Target) -> dict[str, list[Tensor]]:
    """Return dL/dh_t for the first state of every layer, step by step."""
    value = read_target(outputs, target)[0]
    names = [name for name, states in recording.states.items() if states]
    if not value.requires_grad or not names:
        return {}
    wanted = [state[0] for name in names for state in recording.states[name]]
    slopes = torch.autograd.grad(value, wanted, allow_unused=True)
    gradients, at = {}, 0
    for name in names:
        states = recording.states[name]
        some = slopes[at : at + len(states)]
        at += len(states)
        gradients[name] = [torch.zeros_like(s[0]) if g is None else g for s, g in zip(states, some, strict=True)]
    return gradients


def _view_layer(name: str, recording: Recording, gradient: list[Tensor] | None) -> LayerView:
    layer, cell = recording.layers[name], recording.cells[name]
    view = LayerView(name, cell.name or type(cell).__name__, find_equations(cell))
    for letter, state in zip(STATE_LETTERS, layer.states, strict=False):
        view.tensors |= _spread(letter, state[0].detach(), cell)
    for letter, gate in layer.gates.items():
        if letter not in view.tensors:
            view.tensors |= _spread(letter, gate[0].detach(), cell)
    h = layer.states[0][0].detach()
    if gradient is not None and h.ndim == 2:
        slopes = torch.stack(gradient, 1)
        is_reversed = name.endswith("_reverse")
        slopes = (reverse_steps(slopes, None) if is_reversed else slopes)[0].detach()
        steps = h.flip(0) if is_reversed else h
        change = torch.diff(steps, dim=0, prepend=torch.zeros_like(steps[:1]))
        change = change.flip(0) if is_reversed else change
        view.flow = slopes.norm(dim=1).numpy()
        view.effect = (slopes * change).numpy()[:, :MAX_UNITS]
    if h.ndim == 2 and h.shape[0] >= 2 and h.numel() <= GROUPED_SIZE:
        view.groups = group_units(h.numpy())
    return view


def _spread(letter: str, value: Tensor, cell: object) -> dict[str, Array]:
    """Return a value (T, units) by its letter; one of more dimensions as (T, parts x units) with named parts."""
    if value.ndim == 2:
        return {letter: value[:, :MAX_UNITS].float().numpy()}
    context = getattr(cell, "context", None)
    if letter == "a" and value.ndim == 3 and context is not None:  # (T, rows, heads) of attn_rnn
        return {f"a({row})": value[:, i].float().numpy() for i, row in enumerate(context)}
    return {letter: value.flatten(1)[:, :MAX_UNITS].float().numpy()}


def find_equations(cell: object) -> str:
    """Return the indented equations of a cell's docstring."""
    lines = (type(cell).__doc__ or "").splitlines()
    block: list[str] = []
    for line in lines[1:]:
        if line.startswith("        ") and line.strip():
            block.append(line.strip())
        elif block and line.strip():
            break
    return "\n".join(block)


def group_units(h: Array) -> list[int]:
    """Group units by non-negative matrix factorisation of their activity (T, H); return a group for each unit.

    Positive and negative activity count as separate features, as they mean different things.
    """
    from sklearn.decomposition import NMF

    parts = np.concatenate([np.maximum(h, 0), np.maximum(-h, 0)], 1)
    k = min(GROUPS, *h.shape)
    if k < 2 or not parts.any():
        return [0] * h.shape[1]
    # With tol=0 an unfinished factorisation, which is good enough to sort units, gives no warning; to catch one would
    # change the filters of other threads.
    weights = NMF(k, init="nndsvda", max_iter=60, tol=0, random_state=0).fit(parts.astype(np.float64)).components_
    both = weights[:, : h.shape[1]] + weights[:, h.shape[1] :]
    groups: list[int] = both.argmax(0).tolist()
    return groups
