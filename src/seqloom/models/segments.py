"""A forecast by segments: a long past read in few steps, a long future said in one (SegRNN)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.layers.layer import select_rows
from seqloom.models.checks import can_check, check_causal, check_fits
from seqloom.models.scale import Scale, error, middle


class SegmentForecast(nn.Module):
    """Every feature is a series of its own, cut into segments of w steps; one layer reads them all.

        s   = x cut into T / w segments                  (w,) each
        h   = layer(relu(W s + b))                       its state after the last segment
        p_m = [position m; channel c]                    for each of M = horizon / w future segments
        y_m = V step(p_m, h) + a                         all m at once, from the same state

    The layer has input_size = d; it may be any causal one. `channels` is the number of features.

    Lin et al. 2023, arXiv 2308.11200.
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
        d: int = layer.input_size  # type: ignore[assignment]
        check_causal(layer, "SegmentForecast")
        if segment < 1 or horizon < 1 or horizon % segment:
            raise UserError(f"horizon must be a multiple of segment, got horizon={horizon} and segment={segment}")
        if d % 2:
            raise UserError(f"the layer's input_size must be even, half for positions; got {d}")
        self.layer, self.horizon, self.channels, self.segment = layer, horizon, channels, segment
        self.quantiles, self.middle = tuple(quantiles), middle(quantiles)
        self.scale, self.dropout = Scale(scale), nn.Dropout(dropout)
        self.read = nn.Linear(segment, d)  # W, b
        self.positions = nn.Parameter(torch.randn(horizon // segment, d // 2))
        self.of_channel = nn.Parameter(torch.randn(channels, d // 2))
        self.head = nn.Linear(layer.output_size, segment * max(1, len(self.quantiles)))  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """The past (B, T, channels), T and lengths (B,) multiples of w -> (B, horizon, channels[, quantiles])."""
        w, M = self.segment, len(self.positions)
        if x.dim() != 3 or (x.shape[2], x.shape[1] % w) != (self.channels, 0) or not x.shape[1]:
            raise InputError(f"x must be (B, T, {self.channels}) with T a multiple of {w}, got {tuple(x.shape)}")
        B, T, C = x.shape
        if lengths is not None:
            lengths = read_lengths(lengths, B, T, x.device)
            if can_check(lengths) and bool((lengths % w).any()):
                raise InputError(f"lengths must be multiples of the segment, {w}, got {lengths.tolist()}")
        x, by = self.scale(x, lengths)
        s = x.transpose(1, 2).reshape(B * C, T // w, w)
        n = None if lengths is None else (lengths // w).repeat_interleave(C)
        _, h = self.layer(torch.relu(self.read(s)), lengths=n)
        rows = torch.arange(B * C, device=x.device).repeat_interleave(M)
        p = torch.cat([self.positions.repeat(C, 1), self.of_channel.repeat_interleave(M, 0)], 1)  # (C * M, d)
        y, _ = self.layer.step(p.repeat(B, 1), select_rows(self.layer, h, rows))  # type: ignore[operator]  # (B * C * M, H)
        y = self.head(self.dropout(y)).view(B, C, self.horizon, -1).transpose(1, 2)  # (B, horizon, C, quantiles or 1)
        # contiguous: of a loss of what is not, a compiled backward expects other strides than it is given
        return by.undo(y if self.quantiles else y.squeeze(-1)).contiguous()

    def loss(self, x: Tensor, y: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """Mean squared error of the future y (B, horizon, channels), or the pinball loss of its quantiles."""
        expected = (x.shape[0], self.horizon, self.channels)
        if tuple(y.shape) != expected or not y.numel():
            raise InputError(f"y must be the future of shape {expected}, not empty; got {tuple(y.shape)}")
        return error(self(x, lengths), y, self.quantiles)

    @torch.no_grad()
    def predict(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """One number for each: (B, horizon, channels), of quantiles the one nearest the middle."""
        y = self(x, lengths)
        return y[..., self.middle] if self.quantiles else y
