"""Gradient norms along a sequence: how they are measured and fitted, and their tables and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from research.studies.support.summary import summarise
from seqloom.lab.report.page import Chart, Curve, Dots, PageBlock
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.measure import initial_gradient_norm

LEAST = 1e-300  # smaller norms count as 0, to keep logarithms finite
ZERO = 1e-22  # float32 squares of smaller gradients are 0, so the article prints 0.0


def zeros(layer: Recurrent, x: Tensor, rows: int | None = None) -> tuple[Tensor, ...]:
    """Return a zero state for one sequence or for a batch of copies."""
    state = layer.cell_at(0).initial_state(x[:1])
    shape = (1,) if rows is None else (1, rows)
    return tuple(torch.zeros(*shape, *s.shape[1:], dtype=x.dtype) for s in state)


def gradient(layer: Recurrent, x: Tensor) -> float:
    """Return |dL/dh_0| along x (T, D), with h_0 = 0 and L = MSE(h_T, 1)."""
    state = zeros(layer, x)
    return initial_gradient_norm(layer, x, state if len(state) > 1 else state[0])


def product(layer: Recurrent, x: Tensor) -> float:
    """Return the spectral norm of the product of all Jacobians along x (T, D), over the whole state.

    The batch has one copy of the sequence per number of the state; copy i gives the gradient of number i.
    """
    size = sum(s[0].numel() for s in zeros(layer, x))
    start = tuple(s.requires_grad_() for s in zeros(layer, x, size))
    _, last = layer(x.expand(size, -1, -1), start if len(start) > 1 else start[0])
    end = torch.cat([s[0].flatten(1) for s in ((last,) if isinstance(last, Tensor) else last)], 1)
    rows = torch.autograd.grad(end.diagonal().sum(), start)
    return float(torch.linalg.matrix_norm(torch.cat([r[0].flatten(1) for r in rows], 1), 2))


@dataclass(frozen=True)
class Line:
    """The fit log norm = a - k T: k and R^2."""

    k: float
    share: float


def fit_line(lengths: Sequence[int], norms: Sequence[float]) -> Line | None:
    """Fit a line if at least three norms are above LEAST, else return None."""
    points = [(T, math.log(norm)) for T, norm in zip(lengths, norms, strict=True) if norm > LEAST]
    if len(points) < 3:
        return None
    from scipy import stats

    fit = stats.linregress([T for T, _ in points], [y for _, y in points])
    return Line(-float(fit.slope), float(fit.rvalue) ** 2)


class Reached(Protocol):
    """The fields of `gradients.Reach` that are used here."""

    @property
    def model(self) -> str: ...
    @property
    def start(self) -> str: ...
    @property
    def input(self) -> str: ...
    @property
    def stage(self) -> str: ...
    @property
    def gradient(self) -> list[float]: ...
    @property
    def product(self) -> list[float]: ...


Groups = dict[tuple[str, str, str, str], list[Reached]]  # by stage, input, model, start


def groups(rows: Sequence[Reached]) -> Groups:
    by_group: Groups = {}
    for row in rows:
        by_group.setdefault((row.stage, row.input, row.model, row.start), []).append(row)
    return by_group


def centre(values: Sequence[float]) -> float:
    """Return the geometric mean; values below LEAST count as LEAST, and 0 is returned if all are."""
    if max(values) < LEAST:
        return 0.0
    return math.exp(sum(math.log(max(v, LEAST)) for v in values) / len(values))


def table(rows: Sequence[Reached], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return one row per stage, input, model and start."""
    columns, table = lengths[-5::2], []
    for (stage, x, model, start), mine in groups(rows).items():
        ends = [row.gradient[-1] for row in mine]
        lines = [fit for row in mine if (fit := fit_line(lengths, row.gradient)) is not None]
        k = summarise([fit.k for fit in lines])
        products = [row.product[-1] for row in mine if row.product]
        table.append(
            {"stage": stage, "input": x, "model": model, "start": start}
            | {f"T = {T:,}": centre([row.gradient[lengths.index(T)] for row in mine]) for T in columns}
            | {"lowest": min(ends), "highest": max(ends), "seeds": len(mine)}
            | {"product": centre(products) if products else None}
            | {"k": k.mean, "k low": k.low, "k high": k.high}
            | {"R^2": summarise([fit.share for fit in lines]).mean}
        )
    return table


def compare_with_article(
    rows: Sequence[Reached], lengths: Sequence[int], printed: Mapping[str, Mapping[int, float]]
) -> list[dict[str, Any]]:
    """Return one row per model and length, with the norm in the article beside the measured one."""
    table = []
    for row in rows:
        for T, norm in zip(lengths, row.gradient, strict=True):
            printed_norm = printed[row.model].get(T)
            table.append(
                {
                    "model": row.model,
                    "T": T,
                    "norm": norm,
                    "article": printed_norm,
                    "agrees": agrees(norm, printed_norm),
                }
            )
    return table


def agrees(norm: float, printed: float | None) -> str | None:
    """Return "yes" if both agree to three digits; a printed 0.0 stands for norms below 1e-22 (float32)."""
    if printed is None:
        return None
    same = norm < ZERO if printed == 0 else f"{norm:.2e}" == f"{printed:.2e}"
    return "yes" if same else "no"


def charts(rows: Sequence[Reached], lengths: Sequence[int]) -> list[PageBlock]:
    """Draw norms against distance per stage and input, and one dot per seed at the longest distance."""
    by_group = groups(rows)
    blocks: list[PageBlock] = []
    x = [float(T) for T in lengths]
    for place in dict.fromkeys((stage, inputs) for stage, inputs, _, _ in by_group):
        mine = {f"{m}, {s}": rows for (stage, inputs, m, s), rows in by_group.items() if (stage, inputs) == place}
        curves, products, dots = [], [], {}
        for name, some in mine.items():
            columns = list(zip(*(row.gradient for row in some), strict=True))
            low, high = ([max(pick(c), LEAST) for c in columns] for pick in (min, max))
            curves.append(Curve(name, x, [max(centre(c), LEAST) for c in columns], low, high))
            with_products = [row.product for row in some if row.product]
            if with_products:
                centres = [max(centre(c), LEAST) for c in zip(*with_products, strict=True)]
                products.append(Curve(name, x, centres))
            dots[name] = [max(row.gradient[-1], LEAST) for row in some]
        at = f"{place[0]}, x {place[1]}"
        zero = f"0 is drawn at {LEAST:g}"
        bar = f"The bar is the arithmetic mean, which the highest seeds dominate; {zero}."
        note = f"geometric mean over seeds, band from lowest to highest seed; {zero}"
        blocks.append(Chart(f"|dL/dh_0|: {at}", "steps T", "norm", curves, True, True, note))
        if products:
            title = f"Product of the Jacobians of all steps: {at}"
            blocks.append(
                Chart(title, "steps", "spectral norm", products, True, True, f"geometric mean over seeds; {zero}")
            )
        blocks.append(Dots(f"|dL/dh_0| at T = {lengths[-1]:,}: {at}", "norm", dots, log_y=True, note=bar))
    return blocks
