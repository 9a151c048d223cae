"""What a series is measured against, and how far a forecast is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError
from seqloom.core.masks import make_mask

SCALES = ("none", "last", "mean")
SMALL = 1e-5  # added to a variance, so that a flat series stays finite


class Scale(nn.Module):
    """Each series and feature on its own terms, so that a model need not know how high a series stands.

    none  x
    last  x - x_n, n the last real step
    mean  (x - mean) / sqrt(variance + small), over the real steps

    The forecast is measured in the same terms and turned back (Kim et al. 2022, reversible instance
    normalisation, without its learned gain).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind not in SCALES:
            raise UserError(f"scale must be one of {', '.join(SCALES)}, got {kind!r}")
        self.kind = kind

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Terms]:
        """(B, T, D) -> the same in its own terms, and these."""
        if x.dim() != 3 or not x.shape[1]:
            raise InputError(f"a series must be (B, T, D) with at least one step, got {tuple(x.shape)}")
        B, T, D = x.shape
        lengths = torch.full((B,), T, device=x.device) if lengths is None else lengths
        real = make_mask(lengths, T).unsqueeze(-1)
        x = torch.where(real, x, torch.zeros_like(x))
        shift, unit = x.new_zeros(B, 1, D), x.new_ones(B, 1, D)
        if self.kind == "last":
            shift = x.gather(1, (lengths - 1).clamp(min=0).view(B, 1, 1).expand(B, 1, D))
        elif self.kind == "mean":
            n = lengths.clamp(min=1).view(B, 1, 1)
            shift = x.sum(1, keepdim=True) / n
            unit = (((x - shift) * real).square().sum(1, keepdim=True) / n + SMALL).sqrt()
        terms = Terms(shift.detach(), unit.detach())
        return terms.do(x) * real, terms

    def extra_repr(self) -> str:
        return self.kind


@dataclass(frozen=True, eq=False)
class Terms:
    """Of a batch of series: shift and unit (B, 1, D)."""

    shift: Tensor
    unit: Tensor

    def do(self, y: Tensor) -> Tensor:
        """(B, M, k): the first k features, measured in these terms."""
        return (y - self.shift[..., : y.shape[2]]) / self.unit[..., : y.shape[2]]

    def undo(self, y: Tensor) -> Tensor:
        """(B, M, k) or (B, M, k, quantiles), turned back."""
        shift, unit = self.shift[..., : y.shape[2]], self.unit[..., : y.shape[2]]
        return y * unit + shift if y.dim() == 3 else y * unit.unsqueeze(-1) + shift.unsqueeze(-1)


def error(says: Tensor, y: Tensor, quantiles: Sequence[float] = ()) -> Tensor:
    """The mean squared error, or for quantiles q the mean of max(q (y - s), (q - 1)(y - s))."""
    if not quantiles:
        return F.mse_loss(says, y)
    q = torch.tensor(quantiles, dtype=says.dtype, device=says.device)
    off = y.unsqueeze(-1) - says
    return torch.maximum(q * off, (q - 1) * off).mean()


def middle(quantiles: Sequence[float]) -> int:
    """The place of the quantile nearest 0.5."""
    if any(not 0 < q < 1 for q in quantiles) or list(quantiles) != sorted(set(quantiles)):
        raise InputError(f"quantiles must rise between 0 and 1, such as (0.1, 0.5, 0.9); got {tuple(quantiles)}")
    return min(range(len(quantiles)), key=lambda i: abs(quantiles[i] - 0.5), default=0)
