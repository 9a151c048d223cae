"""N to M real values: the next steps of a series."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqloom.core.arguments import Checked
from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.core.plurals import count
from seqloom.layers.readout import Readout
from seqloom.models.checks import check_causal, check_fits, read_size
from seqloom.models.scale import SeriesScale, find_median, forecast_loss

MODES = ("direct", "autoregressive")


class Forecast(nn.Module, metaclass=Checked):
    """Forecast the next steps of a series.

    Args:
        layer: A layer with batch_first=True.
        horizon: Number of steps to forecast.
        targets: Number of features to forecast, the first ones; None for all.
        known: Number of features that are known ahead, the last ones; `forward` takes their future. They are not
            normalised.
        mode: "direct" predicts all steps at once from the layer's last output. "autoregressive" predicts one step,
            feeds it back and repeats; all features must be targets. It is trained on each step of the true series.
        scale: How each series is normalised: "last" (minus its last value), "mean" (mean 0, variance 1) or "none"; or a
            `SeriesScale`.
        quantiles: Quantiles to forecast instead of the mean, such as (0.1, 0.5, 0.9).
        dropout: Dropout before the head.

    Raises:
        ValueError: If an argument is out of range or the parts do not fit together.

    Example:
        >>> model = seqloom.Forecast(seqloom.GRU(2, 16, batch_first=True), horizon=4)
        >>> past, future = torch.randn(3, 20, 2), torch.randn(3, 4, 2)
        >>> model(past).shape, model.loss(past, future).shape
        (torch.Size([3, 4, 2]), torch.Size([]))
    """

    def __init__(
        self,
        layer: nn.Module,
        horizon: int,
        *,
        targets: int | None = None,
        known: int = 0,
        mode: str = "direct",
        scale: str | SeriesScale = "last",
        quantiles: Sequence[float] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise UserError(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
        if horizon < 1:
            raise UserError(f"horizon must be at least 1 step, got {horizon}")
        check_fits(layer, "Forecast")
        features = read_size(layer, "input_size", "layer")
        self.targets = features if targets is None else targets
        if not 1 <= self.targets <= features:
            raise UserError(
                f"targets must lie between 1 and the {count(features, 'feature')} of the layer, got {targets}"
            )
        if mode == "autoregressive" and self.targets != features:
            raise UserError(f"an autoregressive forecast needs all {features} features as targets, got {targets}")
        if not 0 <= known <= features - self.targets:
            raise UserError(
                f"known must lie between 0 and the {count(features - self.targets, 'feature')} that are not forecast, "
                f"got {known}"
            )
        if mode == "autoregressive":
            check_causal(layer, "an autoregressive Forecast")
        self.layer, self.horizon, self.mode = layer, horizon, mode
        self.quantiles, self.middle = tuple(quantiles), find_median(quantiles)
        self.scale = SeriesScale(scale, known) if isinstance(scale, str) else scale
        width = read_size(layer, "output_size", "layer")
        self.readout = Readout("last", width, getattr(layer, "bidirectional", False))
        self.dropout = nn.Dropout(dropout)
        steps = horizon if mode == "direct" else 1
        self.head = nn.Linear(width, steps * self.targets * max(1, len(self.quantiles)))
        self.known = known
        if known:
            self.read_future = nn.Linear(known, width)
            self.add_future = nn.Linear(width, self.targets * max(1, len(self.quantiles)))

    def forward(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, future: Tensor | None = None) -> Tensor:
        """Forecast from the past.

        Args:
            x: (B, T, D).
            lengths: (B,) steps of each series.
            future: (B, horizon, known) the known features of the steps to forecast.

        Returns:
            (B, horizon, targets), or (B, horizon, targets, quantiles).
        """
        if lengths is not None:
            lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device)
        x, terms = self.scale(x, lengths)
        y, state = self.layer(x, lengths=lengths)
        last = self.readout(y, lengths)
        y = self._predict(last, self.horizon) if self.mode == "direct" else self._roll_out(last, state)
        if self.known:
            y = y + self._predict_effect(last, future)
        return terms.invert(y)

    def _predict_effect(self, last: Tensor, future: Tensor | None) -> Tensor:
        """Return what the known features (B, horizon, known) add: V relu(U f_s + h), with the last output h (B, H)."""
        expected = (last.shape[0], self.horizon, self.known)
        if future is None or tuple(future.shape) != expected:
            raise InputError(f"future must be {expected}, got {None if future is None else tuple(future.shape)}")
        effect = self.add_future(self.dropout(torch.relu(self.read_future(future) + last.unsqueeze(1))))
        shape = (self.targets, len(self.quantiles)) if self.quantiles else (self.targets,)
        return effect.view(last.shape[0], self.horizon, *shape)

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        future: Tensor | None = None,
    ) -> Tensor:
        """Return the mean squared error of the future y (B, horizon, targets), or the pinball loss of its quantiles."""
        if tuple(y.shape) != (x.shape[0], self.horizon, self.targets) or not y.numel():
            expected = (x.shape[0], self.horizon, self.targets)
            raise InputError(f"y must be the future of shape {expected}, not empty; got {tuple(y.shape)}")
        if self.mode == "direct":
            return forecast_loss(self(x, lengths, future), y, self.quantiles)
        if lengths is not None:
            raise InputError("an autoregressive forecast is trained on series of one length; leave lengths out")
        scaled, terms = self.scale(x, None)
        whole = torch.cat([scaled, terms.apply(y)], 1)
        outputs, _ = self.layer(whole[:, :-1])
        return forecast_loss(terms.invert(self._predict(outputs, 1)), torch.cat([x, y], 1)[:, 1:], self.quantiles)

    @torch.no_grad()
    def predict(self, x: Tensor, lengths: Tensor | Sequence[int] | None = None, future: Tensor | None = None) -> Tensor:
        """Forecast one value each, (B, horizon, targets): of quantiles, the one nearest to the median."""
        y = self(x, lengths, future)
        return y[..., self.middle] if self.quantiles else y

    def _predict(self, y: Tensor, steps: int) -> Tensor:
        """Map outputs (B, H) or (B, T, H) to (B, steps or T, targets[, quantiles])."""
        shape = (self.targets, len(self.quantiles)) if self.quantiles else (self.targets,)
        return self.head(self.dropout(y)).view(y.shape[0], y.shape[1] if y.dim() == 3 else steps, *shape)

    def _roll_out(self, last: Tensor, state: object) -> Tensor:
        steps = [self._predict(last, 1)]
        for _ in range(1, self.horizon):
            now = steps[-1].squeeze(1)
            last, state = self.layer.step(now[..., self.middle] if self.quantiles else now, state)  # type: ignore[operator]
            steps.append(self._predict(last, 1))
        return torch.cat(steps, 1)
