"""Normalisation of series, and the loss of forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import InputError, UserError
from seqloom.core.masks import make_mask

SCALES = ("none", "last", "mean")
EPS = 1e-5  # added to a variance, so that a constant series stays finite


class SeriesScale(nn.Module):
    """Normalise each series and feature separately, so that a model does not depend on their level.

        none  x
        last  x - x_n, n the last real step
        mean  (x - mean) / sqrt(variance + eps), over the real steps

    The forecast is converted back with the same terms (Kim et al. 2022, reversible instance normalisation, without its
    learned gain).

    Args:
        kind: "none", "last" or "mean".
        plain: Number of features, the last ones, that are not normalised, such as flags.
    """

    def __init__(self, kind: str, plain: int = 0) -> None:
        super().__init__()
        if kind not in SCALES:
            raise UserError(f"scale must be one of {', '.join(SCALES)}, got {kind!r}")
        self.kind, self.plain = kind, plain

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, ScaleTerms]:
        """Normalise x (B, T, D), and return the terms that invert it."""
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
            unit = (((x - shift) * real).square().sum(1, keepdim=True) / n + EPS).sqrt()
        if self.plain:
            shift[..., -self.plain :], unit[..., -self.plain :] = 0.0, 1.0
        terms = ScaleTerms(shift.detach(), unit.detach())
        return terms.apply(x) * real, terms

    def extra_repr(self) -> str:
        return self.kind


@dataclass(frozen=True, eq=False)
class ScaleTerms:
    """The normalisation of a batch of series: shift and unit, (B, 1, D) each."""

    shift: Tensor
    unit: Tensor

    def apply(self, y: Tensor) -> Tensor:
        """Normalise y (B, M, k), the first k features."""
        return (y - self.shift[..., : y.shape[2]]) / self.unit[..., : y.shape[2]]

    def invert(self, y: Tensor) -> Tensor:
        """Convert y (B, M, k) or (B, M, k, quantiles) back."""
        shift, unit = self.shift[..., : y.shape[2]], self.unit[..., : y.shape[2]]
        return y * unit + shift if y.dim() == 3 else y * unit.unsqueeze(-1) + shift.unsqueeze(-1)


def forecast_loss(forecast: Tensor, y: Tensor, quantiles: Sequence[float] = ()) -> Tensor:
    """Return the mean squared error, or for quantiles q of forecasts s the mean of max(q (y - s), (q - 1)(y - s))."""
    if not quantiles:
        return F.mse_loss(forecast, y)
    q = torch.tensor(quantiles, dtype=forecast.dtype, device=forecast.device)
    off = y.unsqueeze(-1) - forecast
    return torch.maximum(q * off, (q - 1) * off).mean()


def find_median(quantiles: Sequence[float]) -> int:
    """Return the index of the quantile nearest to 0.5."""
    if any(not 0 < q < 1 for q in quantiles) or list(quantiles) != sorted(set(quantiles)):
        raise InputError(f"quantiles must increase between 0 and 1, such as (0.1, 0.5, 0.9); got {tuple(quantiles)}")
    return min(range(len(quantiles)), key=lambda i: abs(quantiles[i] - 0.5), default=0)
