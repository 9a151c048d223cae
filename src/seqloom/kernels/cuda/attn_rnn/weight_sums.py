"""Gradients of AttnRNN's weights from those of many steps, in a few batched products."""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = {torch.float32: 32}  # rows that are summed in one go: a long sum in float32 is further off than the loop's
USUAL = 1024  # in the other types, whose own rounding is far coarser
LIMIT = 1 << 20  # numbers in the sums of all pieces of one weight


def pieces(rows: int, hidden: int, dtype: torch.dtype) -> int:
    return max(1, min(rows // PIECE.get(dtype, USUAL), LIMIT // hidden**2))


def sums(back: Tensor, planes: Tensor, n: int) -> tuple[Tensor, ...]:
    """dq, ds, dg, dn and seen, aC, o, n, (4, rows, H) each -> gradients of weight_q, bias_q, .. bias_n in float32.

    Sums of n pieces, then of these: deterministic, and no long sum.
    """
    H = back.shape[-1]
    d, r = back.view(4, n, -1, H), planes.view(4, n, -1, H)
    dq, ds, dgo, dn = _product(d.flatten(0, 1), r.flatten(0, 1)).view(4, n, H, H).sum(1)
    dgh = _product(d[2], r[0]).sum(0)
    bq, bo, bg, bn = back.sum(1, dtype=torch.float32)
    return dq, bq, ds, bo, torch.cat([dgh, dgo], 1), bg, dn.diagonal(), bn


def _product(d: Tensor, r: Tensor) -> Tensor:
    """(n, rows, H), (n, rows, M) -> (n, H, M) in float32."""
    if d.is_cuda and d.dtype != torch.float32:
        return torch.bmm(d.transpose(1, 2), r, out_dtype=torch.float32)
    return torch.bmm(d.transpose(1, 2).float(), r.float())
