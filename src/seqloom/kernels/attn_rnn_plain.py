"""AttnRNN's equations in plain torch, forward and backward, for any number of slots.

Letters are those of `AttnRNNCell`; a prefix d means the gradient of the loss. s is the input of gelu, v is daC. Values
per slot are (..., m, H), with m = 1 for a cell without slots.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.kernels import heuristics

WEIGHT_NAMES = ("weight_q", "bias_q", "weight_o", "bias_o", "weight_g", "bias_g", "scale_n", "bias_n")


@dataclass(frozen=True)
class Equations:
    """The fields of a cell that its equations use."""

    hidden_size: int
    heads: int
    context: tuple[str, ...]
    norm: bool
    slots: int


@dataclass(frozen=True)
class StepValues:
    """Intermediate values of one step (B, ...) or of all steps (B, T, ...)."""

    h: Tensor
    u: Tensor  # (..., 1, H)
    q: Tensor
    C: Tensor  # (..., rows, H)
    p: Tensor  # (..., m, rows, heads): attention
    aC: Tensor
    s: Tensor
    o: Tensor
    g: Tensor

    def steps(self) -> list[StepValues]:
        """Split values of all steps (B, T, ...) into one entry per step."""
        return [StepValues(*parts) for parts in zip(*(part.unbind(1) for part in vars(self).values()), strict=True)]


def compute_inside(cell: Cell | Equations, h: Tensor, seen: Tensor, u: Tensor, own: Sequence[Tensor]) -> StepValues:
    """Compute the intermediate values of steps.

    Args:
        cell: The cell.
        h: (..., m, H), the state before the steps.
        seen: h after recurrent dropout.
        u: (..., H), the projected input.
        own: The weights, in the order of WEIGHT_NAMES.
    """
    Wq, bq, Wo, bo, Wg, bg, _, _ = own
    u = u.unsqueeze(-2)
    rows = {"h": lambda: h, "x": lambda: u, "h+x": lambda: h + u, "h*x": lambda: h * u}
    C = torch.cat([rows[part]() for part in cell.context], -2)
    q = F.linear(seen, Wq, bq)
    q_, C_ = split_heads(cell, q), split_heads(cell, C)
    p = torch.softmax(dots(q_, C_) / math.sqrt(cell.hidden_size // cell.heads), -2)
    aC = mix(p, C_).flatten(-2)
    s = F.linear(aC, Wo, bo)
    o = F.gelu(s)
    g = torch.sigmoid(F.linear(torch.cat([seen, o], -1), Wg, bg))
    return StepValues(h, u, q, C, p, aC, s, o, g)


def step_forward(cell: Cell | Equations, h: Tensor, seen: Tensor, u: Tensor, own: Sequence[Tensor]) -> Tensor:
    """Return the state after a step; arguments as in `compute_inside`."""
    at = compute_inside(cell, h, seen, u, own)
    n = F.layer_norm(at.o + h, h.shape[-1:], own[6], own[7]) if cell.norm else at.o
    return at.g * n + (1 - at.g) * h


@dataclass(frozen=True)
class Slopes:
    """Derivatives that the backward pass needs besides the intermediate values."""

    gelu: Tensor
    gate: Tensor  # (n - h) g (1 - g): derivative of h' with respect to the input of the gate's sigmoid
    xhat: Tensor
    r: Tensor

    def steps(self) -> list[Slopes]:
        return [Slopes(*parts) for parts in zip(*(part.unbind(1) for part in vars(self).values()), strict=True)]


def compute_slopes(at: StepValues, own: Sequence[Tensor]) -> Slopes:
    """Compute the derivatives of gelu, gate and norm."""
    scale, bias = own[6:]
    cdf = 0.5 * (1 + torch.erf(at.s * math.sqrt(0.5)))
    gelu = cdf + at.s * torch.exp(-0.5 * at.s * at.s) / math.sqrt(2 * math.pi)
    z = at.o + at.h
    r = torch.rsqrt(z.var(-1, correction=0, keepdim=True) + 1e-5)
    xhat = (z - z.mean(-1, keepdim=True)) * r
    n = xhat * scale + bias if scale is not None else at.o
    return Slopes(gelu, (n - at.h) * at.g * (1 - at.g), xhat, r)


def step_backward(
    cell: Cell | Equations, at: StepValues, slopes: Slopes, dh: Tensor, own: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Run a backward step: from dh' to the gradients of h, seen, q, s, the gate's sigmoid input, n and u."""
    Wq, _, Wo, _, Wg, _, scale, _ = own
    dn = dh * at.g
    dg = dh * slopes.gate
    do, past = dn, dh - dn
    if scale is not None:
        dx = dn * scale
        do = slopes.r * (dx - dx.mean(-1, keepdim=True) - slopes.xhat * (dx * slopes.xhat).mean(-1, keepdim=True))
        past = past + do
    dgh, dgo = (dg @ Wg).chunk(2, -1)
    ds = (do + dgo) * slopes.gelu
    v, q, C = (split_heads(cell, t) for t in (ds @ Wo, at.q, at.C))
    dp = dots(v, C)
    dscore = at.p * (dp - (at.p * dp).sum(-2, keepdim=True)) / math.sqrt(cell.hidden_size // cell.heads)
    dq = mix(dscore, C).flatten(-2)
    dC = (mix(at.p.transpose(-2, -3), v) + mix(dscore.transpose(-2, -3), q)).flatten(-2)
    dch, du = _split_context(cell, at, dC)
    return past + dch, dgh + dq @ Wq, dq, ds, dg, dn, du


def _split_context(cell: Cell | Equations, at: StepValues, dC: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of h and u from that of the context C."""
    m = at.h.shape[-2]
    rows = dict(zip(cell.context, dC.split([1 if part == "x" else m for part in cell.context], -2), strict=True))
    dh = [d for part, d in rows.items() if part in ("h", "h+x")]
    du = [d for part, d in rows.items() if part in ("x", "h+x")]
    if "h*x" in rows:
        dh.append(rows["h*x"] * at.u)
        du.append(rows["h*x"] * at.h)
    return _sum(dh, at.h), _sum([d if d.shape[-2] == 1 else d.sum(-2, keepdim=True) for d in du], at.u)


def _sum(parts: list[Tensor], like: Tensor) -> Tensor:
    return reduce(torch.add, parts) if parts else torch.zeros_like(like)


def weight_gradients(
    at: StepValues, seen: Tensor, slopes: Slopes, grads: Sequence[Tensor], own: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the weights, in their order.

    Args:
        at: The intermediate values of all steps.
        seen: (B, T, m, H), the states after recurrent dropout.
        slopes: The derivatives of all steps.
        grads: The gradients of q, s, the gate's sigmoid input and n in all steps, (B, T, m, H) each.
        own: The weights.
    """
    dq, ds, dg, dn = (d.flatten(1, 2) for d in grads)
    seen, aC, o, xhat = (t.flatten(1, 2) for t in (seen, at.aC, at.o, slopes.xhat))
    dWq, dWo = _sum_products(dq.flatten(0, 1), seen.flatten(0, 1)), _sum_products(ds.flatten(0, 1), aC.flatten(0, 1))
    dWg = _sum_products(dg.flatten(0, 1), torch.cat([seen, o], -1).flatten(0, 1))
    norm = (_sum_steps(dn * xhat), _sum_steps(dn)) if own[6] is not None else (None, None)
    return dWq, _sum_steps(dq), dWo, _sum_steps(ds), dWg, _sum_steps(dg), *norm


def _sum_products(d: Tensor, x: Tensor) -> Tensor:
    """Return d^T x over many rows, in slices: one long sum in float32 is less accurate than the loop's short sums."""
    rows = max(16, math.isqrt(len(d)))
    total = d[:rows].T @ x[:rows]
    for start in range(rows, len(d), rows):
        total.addmm_(d[start : start + rows].T, x[start : start + rows])
    return total


def _sum_steps(d: Tensor) -> Tensor:
    """(B, T, M) -> (M,): sum over rows, then over steps, as the loop does."""
    return d.sum(0, dtype=torch.float64).sum(0).to(d.dtype)


def split_heads(cell: Cell | Equations, t: Tensor) -> Tensor:
    """(..., H) -> (..., heads, d)."""
    return t.unflatten(-1, (cell.heads, -1))


def dots(v: Tensor, C: Tensor) -> Tensor:
    """Return v_i . C_j for each head: (..., i, heads, d), (..., j, heads, d) -> (..., i, j, heads)."""
    if v.numel() * C.shape[-3] > heuristics.PAIRWISE_NUMBERS:
        return torch.einsum("...iad,...jad->...ija", v, C)
    return (v.unsqueeze(-3) * C.unsqueeze(-4)).sum(-1)


def mix(w: Tensor, C: Tensor) -> Tensor:
    """Return the sum of w_ij C_j: (..., i, j, heads), (..., j, heads, d) -> (..., i, heads, d)."""
    if C.shape[-3] == 1:
        return w.squeeze(-2).unsqueeze(-1) * C
    if C.numel() * w.shape[-3] > heuristics.PAIRWISE_NUMBERS:
        return torch.einsum("...ija,...jad->...iad", w, C)
    return (w.unsqueeze(-1) * C.unsqueeze(-4)).sum(-3)
