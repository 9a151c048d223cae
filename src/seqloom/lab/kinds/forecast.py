"""The values that follow a series."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Features, Task, Values
from seqloom.lab.kinds import prediction_intervals
from seqloom.lab.kinds.columns import Columns, sum_errors, to_array
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import CAUSAL, Kind, ScoredRows
from seqloom.lab.kinds.layers import build_layer, looks_ahead
from seqloom.lab.kinds.pages.forecast_analysis import analyse_forecasts
from seqloom.lab.kinds.prediction_intervals import PredictionIntervals
from seqloom.lab.kinds.regress import ForRegress
from seqloom.lab.kinds.results import Result, build_value_results, lengthen_forecasts
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock
from seqloom.lab.stats.forecasts import count_inside, sum_relative_errors
from seqloom.lab.stats.metrics import Array
from seqloom.models.checks import can_check
from seqloom.models.forecast import Forecast
from seqloom.models.scale import SeriesScale
from seqloom.models.segments import SegmentForecast

MAX_SEGMENT = 48  # time steps of a forecast that are read as one segment, if the data allows it


class ForForecast(ForRegress):
    """Squared error of a forecast."""

    streams = False
    why_whole = "a forecast needs its whole past"

    def compute_output(self, batch: Batch) -> Tensor:
        """Return the output of an exported model, whose runner pads to segments."""
        if not self.segment:
            return super().compute_output(batch)
        return self.model(batch.x if self.order is None else batch.x[..., self.order], batch.lengths)

    def __init__(self, model: nn.Module, order: list[int]) -> None:
        super().__init__(model)
        self.order = order if order != sorted(order) else None  # moves the targets to the front, as Forecast expects
        self.segment = model.segment if isinstance(model, SegmentForecast) else 0
        self.intervals: PredictionIntervals | None = None  # before they have been fitted

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        x = batch.x if self.order is None else batch.x[..., self.order]
        if batch.future is not None:
            return self.model(x, batch.lengths, batch.future), None
        if self.segment:
            return self.model(*pad_to_segments(x, batch.lengths, self.segment)), None
        return self.model(x, batch.lengths), None

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        values = scores.float()
        if self.intervals is None:
            return Prediction(values)
        past = prediction_intervals.get_past(self, batch, values.shape[2])
        return Prediction(values, bounds=self.intervals.find_bounds(values, past, batch.lengths))

    def fit_decision(self, task: Task, settings: TrainSettings) -> None:
        """Fit the intervals."""
        if "valid" in task.splits:
            self.intervals = prediction_intervals.fit_intervals(self, task, settings.sizes)

    def store_decision(self, folder: Path) -> None:
        if self.intervals is not None:
            prediction_intervals.save(folder, self.intervals)

    def restore_decision(self, folder: Path, task: Task) -> None:
        if isinstance(task.target, Values):
            self.intervals = prediction_intervals.load(folder, task.target.steps, task.target.size)


def order_features(task: Task) -> list[int]:
    """Return the order of a forecast's features: targets, others, flags, and those that are known ahead."""
    assert isinstance(task.input, Features) and isinstance(task.target, Values)
    inputs, targets, flags, known = task.input.names, task.target.names, task.input.flags, task.input.known
    others = [name for name in inputs if name not in (*targets, *flags, *known)]
    names = [*targets, *others, *(name for name in flags if name not in known), *known]
    return [inputs.index(name) for name in names]


def pad_to_segments(x: Tensor, lengths: Tensor, w: int) -> tuple[Tensor, Tensor | None]:
    """Pad rows (B, T, D) at the front with their first value, so that lengths are multiples of w: (B, T', D)."""
    T = x.shape[1]
    if T % w == 0 and can_check(lengths) and bool((lengths == T).all()):
        return x, None  # the usual case: windows of a series; a layer is faster without lengths
    more = -lengths % w
    at = torch.arange(-(-T // w) * w, device=x.device) - more.unsqueeze(1)  # (B, T')
    return x.gather(1, at.clamp(0, T - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])), lengths + more


class ForecastKind(Kind):
    """The values that follow a series: squared error, with intervals."""

    name = "forecast"
    topology = "N to M"
    noun = "number"
    spans_rows = True
    models = CAUSAL
    explains_last = True
    decoder = "series"
    metrics = ("rmse", "mae", "mse", "mase", "smape")
    baselines = ("mean of past", "last value", "season", "ridge of past", "boosting")
    pipeline = "time-series-forecasting"
    has_values = True
    row = "window"

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        if not isinstance(task.input, Features) or not isinstance(task.target, Values):
            raise UserError(f"a forecast needs numbers in and out, task {task.name!r} has {task.input}, {task.target}")
        inputs, targets, horizon = task.input.names, task.target.names, task.target.steps
        absent = [name for name in targets if name not in inputs]
        if absent:
            raise UserError(f"a forecast of {absent[0]!r} needs its past; the inputs are {', '.join(inputs)}")
        order = order_features(task)
        segment = _choose_segment(task, settings, horizon, len(order) == len(targets))
        if segment:
            layer = build_layer(settings, settings.embedding + settings.embedding % 2)
            model: nn.Module = SegmentForecast(layer, horizon, len(targets), segment, dropout=settings.dropout)
        else:
            known = len(task.input.known)
            plain = len({*task.input.known, *task.input.flags})
            model = Forecast(
                build_layer(settings, len(inputs)),
                horizon,
                targets=len(targets),
                known=known,
                scale=SeriesScale("last", plain),
                dropout=settings.dropout,
            )
        return ForForecast(model, order)

    def wrap_baseline(self, task: Task, module: nn.Module) -> ForTask:
        return ForForecast(module, order_features(task))

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        assert isinstance(model, ForForecast)
        count = task.target.size
        about: dict[str, Any] = {
            "limit": task.lookback,
            "scale": task.encoding.y.scale.state(),
            "segment": model.segment,
            "target_features": list(range(count)) if model.order is None else model.order[:count],
        }
        if model.intervals is not None:
            about["intervals"] = model.intervals.describe()
        return about

    def describe_use(self, task: Task, inputs: str) -> str:
        return f"Forecasts {', '.join(getattr(task.target, 'names', ()))} from sequences of {inputs}."

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        return analyse_forecasts(rows.model, rows.task, rows.columns, rows.batch)

    def lengthen_results(self, results: Iterator[Result], task: Task) -> Iterator[Result]:
        return lengthen_forecasts(results, task)

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        """Return errors in the units of a single target, or in standard deviations of several ones."""
        # (B, S, K)
        y, p = (np.array(task.decode(v), dtype=np.float64) for v in (get_targets(batch), prediction.values))
        off = (prediction.values - get_targets(batch)).double().cpu().numpy()
        columns = sum_errors((p - y if task.target.size == 1 else off).reshape(len(batch), -1))
        columns["relative"] = sum_relative_errors(y, p)
        if batch.series is not None:
            series = batch.series.cpu().numpy()
            columns["of_series"] = series
            with np.errstate(divide="ignore", invalid="ignore"):
                scaled = _mean(np.abs(off), 1) / task.units[series]  # (B, K)
            known = np.isfinite(scaled)
            columns |= {"scaled": np.where(known, scaled, 0).sum(1), "series": known.sum(1).astype(np.float64)}
        if prediction.bounds is not None:
            bounds = {k: (to_array(low), to_array(high)) for k, (low, high) in prediction.bounds.items()}
            columns |= count_inside(to_array(get_targets(batch)), bounds)
        return columns

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        return build_value_results(task, prediction)


def _choose_segment(task: Task, settings: TrainSettings, horizon: int, all_targets: bool) -> int:
    if settings.segment is not None:
        if settings.segment and not all_targets:
            raise UserError(
                f"segment={settings.segment} forecasts all inputs; make all of them targets, or set segment=0"
            )
        return settings.segment
    w = math.gcd(horizon, task.lookback, MAX_SEGMENT) if task.lookback else 0
    return w if all_targets and not looks_ahead(settings.model) and w >= 8 else 0


def _mean(values: Array, axis: int) -> Array:
    known = ~np.isnan(values)
    return np.where(known, values, 0).sum(axis) / known.sum(axis)
