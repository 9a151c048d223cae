"""How far the gradient of a layer reaches along a sequence, and its exponential decay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.measure import initial_gradient_norm

LEAST = 1e-300  # smaller norms count as 0, to keep logarithms finite


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
