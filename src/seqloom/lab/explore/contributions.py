"""What each step of an input contributes to one output of a model.

growth       the output after each step, as the sequence grows
occlusion    the output minus the output without a step
gradients    integrated gradients: the path integral of the gradient from a zero input to the input
             (Sundararajan et al. 2017, arXiv 1703.01365); they add up to f(x) - f(0)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seqloom.lab.data.task import PAD, UNKNOWN, Batch
from seqloom.lab.explore.subject import LabelledInput, ModelOutputs, Subject, repeat_batch
from seqloom.layers.layer import Layer

MAX_PREFIXES = 200  # prefixes of a long sequence whose output is computed
MAX_OCCLUSIONS = 200  # windows of a long sequence that are left out one by one
MAX_SERIES_WINDOWS = 30  # windows of a series, in which a single step means little
POINTS = 32  # on the path of integrated gradients; the error of their sum is reported
BATCH_STEPS = 40_000  # steps in one batch of prefixes or occlusions
BUDGET = 40_000  # steps to run for one kind of contribution; longer inputs get fewer prefixes, windows and points
LEAST_PARTS = 8  # prefixes, windows and points of the longest inputs


@dataclass(frozen=True)
class Target:
    """One number that a model computes: output `output` of output step `step`, or of the whole sequence."""

    output: int
    step: int | None = None


Run = Callable[[Batch], ModelOutputs]


def choose_target(
    subject: Subject, outputs: ModelOutputs, output: int | None = None, step: int | None = None
) -> Target:
    """Return the target that the user chose, or the model's prediction."""
    values = outputs.values[0]
    if values.ndim == 1:
        return Target(_limit(output, len(values), int(values.argmax())))
    last = values.shape[0] - 1
    first = last if subject.kind.explains_last else 0
    if subject.kind.aligns_text:
        first = int(values[:, PAD + 1 :].amax(1).argmax())  # where the model is surest of a letter; PAD is the blank
    step = _limit(step, last + 1, first)
    best = int(values[step].argmax()) if outputs.wanted is None else int(outputs.wanted[0, step])
    return Target(_limit(output, values.shape[1], best), step)


def _limit(number: int | None, count: int, default: int) -> int:
    return default if number is None or not 0 <= number < count else number


def read_target(outputs: ModelOutputs, target: Target) -> Tensor:
    """Return the target's value for each row, (B,)."""
    values = outputs.values if target.step is None else outputs.values[:, target.step]
    return values[:, target.output]


class Growth(NamedTuple):
    """The last steps of some prefixes, and the model's outputs (prefixes, K) for them."""

    ends: list[int]
    values: Tensor


class Occlusion(NamedTuple):
    """Windows of steps, and the target's value minus its value without each."""

    windows: list[tuple[int, int]]
    effects: Tensor


@torch.no_grad()
def compute_growth(run: Run, example: LabelledInput) -> Growth:
    """Run the model on some prefixes."""
    n = len(example.steps)
    count = min(n, MAX_PREFIXES, _divide_budget(n // 2 + 1))
    ends = sorted({round((i + 1) * n / count) for i in range(count)})
    rows = [example.batch.cut(end) for end in ends]
    values = torch.cat([run(batch).values for batch in _stack_prefixes(example.batch, [len(r.x[0]) for r in rows])])
    return Growth([end - 1 for end in ends], values)


def _divide_budget(steps: int) -> int:
    """Return how many runs of `steps` steps fit into the budget."""
    return max(LEAST_PARTS, BUDGET // steps)


def _stack_prefixes(batch: Batch, ends: Sequence[int]) -> list[Batch]:
    """Return batches of prefixes with similar lengths."""
    batches, at = [], 0
    while at < len(ends):
        count = max(1, min(len(ends) - at, BATCH_STEPS // ends[min(at + 63, len(ends) - 1)], 64))
        some = torch.tensor(ends[at : at + count])
        rows = repeat_batch(batch, count).cut(int(some[-1]))
        padding = torch.arange(rows.x.shape[1]) >= some.unsqueeze(1)
        x = rows.x.masked_fill(padding if rows.x.ndim == 2 else padding.unsqueeze(-1), 0)
        batches.append(replace(rows, x=x, lengths=some))
        at += count
    return batches


@torch.no_grad()
def occlude(run: Run, example: LabelledInput, target: Target, delete: bool) -> Occlusion:
    """Run the model without each of some windows of steps.

    Args:
        delete: Whether to delete tokens; otherwise they are replaced by the unknown token. Features are replaced by
            their mean in training, which is 0.
    """
    n = len(example.steps)
    most = MAX_OCCLUSIONS if example.batch.x.ndim == 2 else MAX_SERIES_WINDOWS
    count = min(n, most, _divide_budget(n))
    edges = [round(i * n / count) for i in range(count + 1)]
    windows = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
    full = read_target(run(example.batch), target)[0]
    size = max(1, BATCH_STEPS // n)
    values = []
    for start in range(0, len(windows), size):
        batch = remove_windows(example.batch, windows[start : start + size], delete and n > 1)
        values.append(read_target(run(batch), target))
    return Occlusion(windows, full - torch.cat(values))


def remove_windows(batch: Batch, windows: Sequence[tuple[int, int]], delete: bool) -> Batch:
    """Return a batch of one row for each window, without the window."""
    n = batch.x.shape[1]
    rows = repeat_batch(batch, len(windows))
    inside = torch.zeros(len(windows), n, dtype=torch.bool)
    for row, (a, b) in enumerate(windows):
        inside[row, a:b] = True
    if not delete:
        blank = UNKNOWN if batch.x.ndim == 2 else 0
        x = rows.x.masked_fill(inside if batch.x.ndim == 2 else inside.unsqueeze(-1), blank)
        letters = None if rows.letters is None else rows.letters.masked_fill(inside.unsqueeze(-1), 0)
        return replace(rows, x=x, letters=letters)
    order = inside.long().argsort(dim=1, stable=True)  # the steps that stay come first
    lengths = (~inside).sum(1)
    longest = int(lengths.max())
    changes: dict[str, Any] = {"lengths": lengths}
    for name in ("x", "timespans", "letters"):
        tensor: Tensor | None = getattr(rows, name)
        if tensor is not None:
            index = order.view(*order.shape, *(1 for _ in tensor.shape[2:])).expand(tensor.shape)
            changes[name] = tensor.gather(1, index)[:, :longest]
    padding = torch.arange(longest) >= lengths.unsqueeze(1)
    changes["x"] = changes["x"].masked_fill(padding if batch.x.ndim == 2 else padding.unsqueeze(-1), 0)
    return replace(rows, **changes)


def find_layer(network: nn.Module) -> nn.Module | None:
    """Return the layer that reads the input, whose input vectors the gradients refer to."""
    for name in ("encoder.layer", "layer"):
        module: Any = network
        for part in name.split("."):
            module = getattr(module, part, None)
        if isinstance(module, nn.Module):
            return module
    return next((module for module in network.modules() if isinstance(module, Layer)), None)


def integrate_gradients(
    run: Run, network: nn.Module, example: LabelledInput, target: Target
) -> tuple[Tensor, float] | None:
    """Integrate gradients with respect to the vectors that enter the layer, along the line from 0 to them.

    Returns:
        The contribution of each step of the layer (T',), and f(x) - f(0) minus their sum; None if the model has no
        layer of seqloom.
    """
    layer = find_layer(network)
    if layer is None:
        return None
    n = len(example.steps)
    points = min(POINTS, _divide_budget(2 * n))  # a gradient costs twice as much
    size = max(1, min(points, BATCH_STEPS // n))
    middles = (torch.arange(points) + 0.5) / points  # the midpoint rule
    total: Tensor | None = None
    for alphas in middles.split(size):
        gradient, vectors, _ = _differentiate(run, layer, example.batch, target, alphas)
        part = (gradient * vectors).sum((0, 2)) / points
        total = part if total is None else total + part
    assert total is not None
    _, _, ends = _differentiate(run, layer, example.batch, target, torch.tensor([0.0, 1.0]))
    gap = float(ends[1] - ends[0] - total.sum())
    return total, gap


def _differentiate(
    run: Run, layer: nn.Module, batch: Batch, target: Target, alphas: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scale the layer's input by each alpha; return gradients (B, T, D), unscaled vectors (B, T, D) and values (B,)."""
    kept: dict[str, Tensor] = {}

    def scale(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if "scaled" in kept:  # the layer of a decoder runs again
            return inputs, named
        kept["vectors"] = inputs[0].detach()
        parts = len(kept["vectors"]) // len(alphas)  # more than 1 if each feature is read as its own series
        kept["scaled"] = (kept["vectors"] * alphas.repeat_interleave(parts).view(-1, 1, 1)).requires_grad_()
        return (kept["scaled"], *inputs[1:]), named

    with layer.register_forward_pre_hook(scale, with_kwargs=True), torch.enable_grad():
        values = read_target(run(repeat_batch(batch, len(alphas))), target)
        (gradient,) = torch.autograd.grad(values.sum(), kept["scaled"])
    return gradient, kept["vectors"], values.detach()
