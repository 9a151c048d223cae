"""Show how the compiler transforms a cell."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from textwrap import dedent, indent

import torch
from torch import Tensor

from seqloom.compiler.compile import compile_cell
from seqloom.compiler.report import summarize, write_calls, write_program
from seqloom.core.cell import Cell
from seqloom.core.errors import UserTypeError
from seqloom.core.job import ScanJob
from seqloom.layers.recurrent.layer import Recurrent


@dataclass(frozen=True)
class CompileReport:
    """How the compiler transforms a cell; `print` shows it as text.

    Attributes:
        cell: The cell's class.
        step: The source of its step.
        reason: Why it cannot be compiled; empty if it can.
        summary: The number of product stages and operators.
        before: What torch computes for all steps at once.
        forward: The forward loop.
        reverse: The reverse loop.
    """

    cell: str
    step: str
    reason: str = ""
    summary: str = ""
    before: str = ""
    forward: str = ""
    reverse: str = ""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.cell} runs in the loop: {self.reason}"
        parts = [
            ("the step", self.step),
            ("torch, for all steps at once", self.before),
            ("forward, every step", self.forward),
            ("reverse, every step", self.reverse),
        ]
        text = "\n\n".join(f"{title}:\n{indent(body, '    ')}" for title, body in parts if body)
        return f"{self.cell}: {self.summary}\n\n{text}"


def compile_report(cell: Cell | Recurrent, x: Tensor | None = None) -> CompileReport:
    """Show how the compiler transforms a cell: its step, the stages, and the generated loops.

    Args:
        cell: A cell, or a layer, whose first cell is shown.
        x: (B, T, D), an input, for its type; by default zeros in the type of the cell's weights.

    Returns:
        The report; print it.

    Raises:
        UserTypeError: If `cell` is neither a cell nor a recurrent layer.

    Example:
        >>> report = seqloom.compile_report(seqloom.IndRNNCell(4, 8))
        >>> print(report.forward)
        for i < 8:
            new_state_0[i] = relu((mm[i] + bias_ih[i]) + (scale_hh[i] * state_0[i]))

        Here `mm` is the product of x with a weight, which `report.before` shows.
    """
    cell = cell.cells[0] if isinstance(cell, Recurrent) else cell  # type: ignore[assignment]
    if isinstance(cell, type) and issubclass(cell, Cell):
        raise UserTypeError(
            f"compile_report takes a cell, got its class; write {cell.__name__}(input_size, hidden_size)"
        )
    if not isinstance(cell, Cell):
        raise UserTypeError(f"compile_report takes a cell or a recurrent layer, got a {type(cell).__name__}")
    if x is None:
        weight = next(iter((cell.own_parameters() | dict(cell.named_parameters())).values()), torch.empty(0))
        x = weight.new_zeros(2, 2, cell.input_size).detach()
    name = type(cell).__name__
    plan = compile_cell(cell, ScanJob(x, cell.start(x)))
    step = _read_step(cell)
    if isinstance(plan, str):
        return CompileReport(name, step, plan)
    programs = (write_program(scan.program) for scan in (plan.infer, plan.reverse))
    return CompileReport(name, step, "", summarize(plan), write_calls(plan), *programs)


def _read_step(cell: Cell) -> str:
    try:
        return dedent(inspect.getsource(type(cell).step)).strip()
    except (OSError, TypeError):  # typed at a prompt
        return ""
