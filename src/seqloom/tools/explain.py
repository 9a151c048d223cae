"""Show which kernel runs, and why not a faster one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from torch import Tensor, nn

from seqloom.core.cell import Cell, State
from seqloom.core.errors import UserTypeError
from seqloom.core.job import ScanJob
from seqloom.core.precision import useful_autocast, why_not_autocast
from seqloom.kernels.cpu.step import count_most_rows
from seqloom.kernels.dispatch import Choice, choose
from seqloom.kernels.linear.choice import LinearChoice, record_choices
from seqloom.kernels.parallel.experience import find_steps, recall
from seqloom.kernels.runner import run_job
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.recurrent.streaming import why_not_stream


@dataclass(frozen=True, repr=False)
class Explanation:
    """The kernels of a call by layer and direction, and what `step` and autocast do.

    Python shows it as text, a notebook as a table.

    Attributes:
        choices: Where and what: `l0` is the first layer, `l0_reverse` its backward direction.
        step: The kernel of `layer.step`, which streams one step at a time.
        autocast: Why autocast does not apply; empty if it does or is off.
    """

    choices: tuple[tuple[str, Choice | LinearChoice], ...]
    step: str = ""
    autocast: str = ""

    @property
    def kernels(self) -> tuple[str, ...]:
        return tuple(choice.name for _, choice in self.choices)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """Return a table for a notebook: where, kernel, reasons."""
        rows = [(where, *str(choice).partition("\n")[::2]) for where, choice in self.choices]
        rows += [(name, text, "") for name, text in (("step", self.step), ("autocast", self.autocast)) if text]
        cells = ("".join(f"<td style='white-space:pre-line'>{escape(text)}</td>" for text in row) for row in rows)
        head = "<tr><th>call</th><th>runs</th><th>why not a faster kernel</th></tr>"
        return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in cells)}</table>"

    def __str__(self) -> str:
        lines = [*(f"{where}: {choice}" for where, choice in self.choices), f"step: {self.step}"]
        return "\n".join([*lines, *(f"autocast: {text}" for text in [self.autocast] if text)])


def explain(
    layer: nn.Module,
    *args: Any,  # noqa: ANN401  # forwarded to run_with
    **kwargs: Any,  # noqa: ANN401  # forwarded too
) -> Explanation:
    """Run a layer and show which kernels it uses.

    Args:
        layer: A recurrent layer, or a layer with linear recurrences, such as `seqloom.GatedDeltaNet`.
        *args: Arguments of the layer, such as the input.
        **kwargs: Keyword arguments of the layer.

    Returns:
        The kernel of each layer and direction, with the reasons why faster ones do not run.

    Raises:
        TypeError: If the layer is not recurrent.

    Example:
        >>> explanation = seqloom.explain(seqloom.GRU(4, 8, kernel="loop"), torch.randn(5, 3, 4))
        >>> explanation.kernels
        ('any_loop',)
    """
    if not isinstance(layer, Recurrent) and any(isinstance(module, Mixer) for module in layer.modules()):
        return _explain_linear(layer, *args, **kwargs)
    if not isinstance(layer, Recurrent):
        raise UserTypeError(f"explain takes a layer of a cell, such as GRU or AttnRNN, got a {type(layer).__name__}")
    if not args and "input" not in kwargs:
        raise UserTypeError("explain runs the layer and needs its input: explain(layer, x)")
    choices: list[tuple[str, Choice]] = []
    names = ["", "_reverse"][: 1 + layer.bidirectional]
    places = {id(cell): f"l{i // len(names)}{names[i % len(names)]}" for i, cell in enumerate(layer.cells)}

    def record(
        cell: Cell, job: ScanJob, kernel: str = "auto", values: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, State]:
        with useful_autocast(job.x.device.type):
            choice = choose(cell, job, kernel)
            details = [choice.kernel.describe(cell, job)]
            is_divided = find_steps(cell, job.x, layer.parallel) > 0
        result = run_job(cell, job, kernel, values, layer.parallel)
        details += [str(recall(cell))] if is_divided else []
        choices.append((places[id(cell)], replace(choice, detail="; ".join(filter(None, details)))))
        return result

    layer.run_with(record, *args, **kwargs)
    weight = next(layer.parameters(), None)  # a custom cell may have none
    reason = None if weight is None else why_not_autocast(weight.device.type)
    return Explanation(
        tuple(choices), _explain_step(layer), f"stays in the type of the weights: {reason}" if reason else ""
    )


def _explain_linear(
    layer: nn.Module,
    *args: Any,  # noqa: ANN401  # the layer's own arguments
    **kwargs: Any,  # noqa: ANN401
) -> Explanation:
    names = [name or type(module).__name__ for name, module in layer.named_modules() if isinstance(module, Mixer)]
    with record_choices() as choices:
        layer(*args, **kwargs)
    places = names if len(names) == len(choices) else [f"{i}" for i in range(len(choices))]
    return Explanation(tuple(zip(places, choices, strict=True)), "the same kernels on a sequence of one step")


def _explain_step(layer: Recurrent) -> str:
    reason = why_not_stream(layer)
    if reason is None:
        most = count_most_rows(layer.cell_at(0))
        return f"one call of the CPU engine, without gradients and for up to {most} rows"
    return f"none, {reason}" if layer.bidirectional else f"a sequence of one step; {reason}"
