"""Forecasts by segments (SegRNN): a long past in few steps, and a long future in one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.layers.layer import select_rows
from seqloom.models.checks import can_check, check_causal, check_fits, read_size
from seqloom.models.scale import SeriesScale, find_median, forecast_loss


class SegmentForecast(nn.Module, metaclass=Checked):
    """Forecast each feature separately from segments of w steps, with one layer for all features.

        s   = x cut into T / w segments                  (w,) each
        h   = layer(relu(W s + b))                       its state after the last segment
        p_m = [position m; channel c]                    for each of M = horizon / w future segments
        y_m = V step(p_m, h) + a                         all m at once, from the same state

    Lin et al. 2023, arXiv 2308.11200.

    Args:
        layer: A causal layer with batch_first=True and an even input_size d.
        horizon: Number of steps to forecast; a multiple of `segment`.
        channels: Number of features.
        segment: Steps in a segment, w.
        scale: How each series is normalised first: "last", "mean" or "none", see `Forecast`.
        quantiles: Quantiles to forecast instead of the mean, such as (0.1, 0.5, 0.9).
        dropout: Dropout before the head.

    Raises:
        ValueError: If an argument is out of range or the layer does not fit.

    Example:
        >>> model = seqloom.SegmentForecast(seqloom.GRU(8, 16, batch_first=True), horizon=8, channels=2, segment=4)
        >>> past, future = torch.randn(3, 20, 2), torch.randn(3, 8, 2)
        >>> model(past).shape, model.loss(past, future).shape
        (torch.Size([3, 8, 2]), torch.Size([]))
    """

    def __init__(
        self,
        layer: nn.Module,
        horizon: int,
        channels: int,
        segment: int,
        *,
        scale: str = "last",
        quantiles: Sequence[float] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_fits(layer, "SegmentForecast")
        d = read_size(layer, "input_size", "layer")
        check_causal(layer, "SegmentForecast")
        if segment < 1 or horizon < 1 or horizon % segment:
            raise UserError(f"horizon must be a multiple of segment, got horizon={horizon} and segment={segment}")
        if d % 2:
            raise UserError(f"the layer's input_size must be even, half for positions; got {d}")
        self.layer, self.horizon, self.channels, self.segment = layer, horizon, channels, segment
        self.quantiles, self.middle = tuple(quantiles), find_median(quantiles)
        self.scale, self.dropout = SeriesScale(scale), nn.Dropout(dropout)
        self.read = nn.Linear(segment, d)  # W, b
        self.positions = nn.Parameter(torch.randn(horizon // segment, d // 2))
        self.of_channel = nn.Parameter(torch.randn(channels, d // 2))
        self.head = nn.Linear(read_size(layer, "output_size", "layer"), segment * max(1, len(self.quantiles)))

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Forecast (B, horizon, channels[, quantiles]) from (B, T, channels); T and lengths (B,) are multiples of w."""
        w, M = self.segment, len(self.positions)
        if x.dim() != 3 or (x.shape[2], x.shape[1] % w) != (self.channels, 0) or not x.shape[1]:
            raise InputError(f"x must be (B, T, {self.channels}) with T a multiple of {w}, got {tuple(x.shape)}")
        B, T, C = x.shape
        if lengths is not None:
            lengths = read_lengths(lengths, B, T, x.device)
            if can_check(lengths) and bool((lengths % w).any()):
                raise InputError(f"lengths must be multiples of the segment, {w}, got {lengths.tolist()}")
        x, terms = self.scale(x, lengths)
        s = x.transpose(1, 2).reshape(B * C, T // w, w)
        n = None if lengths is None else (lengths // w).repeat_interleave(C)
        _, h = self.layer(torch.relu(self.read(s)), lengths=n)
        rows = torch.arange(B * C, device=x.device).repeat_interleave(M)
        p = torch.cat([self.positions.repeat(C, 1), self.of_channel.repeat_interleave(M, 0)], 1)  # (C * M, d)
        y, _ = self.layer.step(p.repeat(B, 1), select_rows(self.layer, h, rows))  # type: ignore[operator]  # (B * C * M, H)
        y = self.head(self.dropout(y)).view(B, C, self.horizon, -1).transpose(1, 2)  # (B, horizon, C, quantiles or 1)
        # contiguous: otherwise a compiled backward expects other strides than it receives
        return terms.invert(y if self.quantiles else y.squeeze(-1)).contiguous()

    def loss(self, x: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Return the mean squared error of the future y (B, horizon, channels), or the pinball loss of quantiles."""
        expected = (x.shape[0], self.horizon, self.channels)
        if tuple(y.shape) != expected or not y.numel():
            raise InputError(f"y must be the future of shape {expected}, not empty; got {tuple(y.shape)}")
        return forecast_loss(self(x, lengths), y, self.quantiles)

    @torch.no_grad()
    def predict(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Forecast one value each, (B, horizon, channels): of quantiles, the one nearest to the median."""
        y = self(x, lengths)
        return y[..., self.middle] if self.quantiles else y
