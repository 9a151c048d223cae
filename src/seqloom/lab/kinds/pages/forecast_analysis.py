"""The forecasts of the best model: pictures with intervals, scores of each series, errors along the horizon."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import Batch, Task, Values
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.report.page import Chart, Curve, PageBlock, Table
from seqloom.lab.stats.forecasts import LEVELS
from seqloom.lab.stats.metrics import METRICS, Array, compute_scores

DRAWN_SERIES, LISTED_SERIES = 4, 50  # series with a picture, and with a row of scores
PAST_SHARE = 2  # horizons of the past that a picture shows
SERIES_METRICS = ("mae", "rmse", "smape", "mase", *(f"coverage_{level}" for level in LEVELS))


def analyse_forecasts(model: ForTask, task: Task, columns: Columns, batch: int) -> list[PageBlock]:
    """Return report blocks on the forecasts of the test windows."""
    blocks: list[PageBlock] = []
    if isinstance(task, WindowsTask) and "of_series" in columns:
        blocks += _draw_forecasts(model, task, columns["of_series"])
        blocks.append(tabulate_series(task, columns))
    return [*blocks, _draw_errors(model, task, batch)]


@torch.no_grad()
def _draw_forecasts(model: ForTask, task: WindowsTask, of_series: Array) -> list[PageBlock]:
    """Draw the latest test window of some series: the truth, and the forecast with its intervals."""
    charts: list[PageBlock] = []
    for series in np.unique(of_series)[:DRAWN_SERIES]:
        position = int(np.flatnonzero(of_series == series)[-1])
        window = task.get_windows("test", np.array([position]))
        name = task.series_names[int(series)] or task.target.names[0]  # type: ignore[union-attr]
        charts.append(draw_window(task, window, model.predict(window), position, f"Forecast of {name}"))
    return charts


def draw_window(task: WindowsTask, window: Batch, prediction: Prediction, position: int, title: str) -> Chart:
    """Draw one window: what came before, the truth, and the forecast with its intervals.

    Args:
        window: a batch of this window alone.
        position: its place in the test split.
    """
    assert window.y is not None and isinstance(task.target, Values)
    target, S = task.target.names[0], task.horizon
    shown = min(task.lookback, PAST_SHARE * S)
    column = [task.input.names.index(n) for n in task.target.names]  # type: ignore[union-attr]
    past = _decode(task, window.x[:, -shown:, column])
    truth = past + _decode(task, window.y)
    forecast = _decode(task, prediction.values)
    ends = {level: [_decode(task, end) for end in bounds] for level, bounds in (prediction.bounds or {}).items()}
    x = [float(i) for i in range(shown, shown + S)]
    narrow, wide = (ends.get(level, [None, None]) for level in LEVELS)
    dates = task.list_window_dates("test", position)
    steps: list[str] = [str(i - shown + 1) for i in range(shown + S)]
    names = steps if dates is None else [str(date) for date in dates[-shown - S :]]
    curves = [
        Curve("actual", [float(i) for i in range(shown + S)], truth),
        Curve("forecast", x, forecast, wide[0], wide[1], narrow[0], narrow[1]),
    ]
    note = f"The latest test window, {count(S, 'step')} ahead."
    if ends:
        note += f" The bands are the {LEVELS[0]} % and the {LEVELS[1]} % interval."
    return Chart(title, "", target, curves, note=note, x_names=names, split=shown - 0.5)


def _decode(task: Task, values: torch.Tensor) -> list[float]:
    """Return the first target of one window in its units; NaN if unknown."""
    return [float(step[0]) for step in task.decode(values)[0]]


def tabulate_series(task: WindowsTask, columns: Columns) -> Table:
    """Return the scores of each series on its test windows, all of them first."""
    of_series = columns["of_series"]
    parts = [("all", np.ones(len(of_series), dtype=bool))]
    found = np.unique(of_series)
    if len(found) > 1:
        parts += [(task.series_names[int(series)], of_series == series) for series in found[:LISTED_SERIES]]
    rows = []
    for name, chosen in parts:
        values = compute_scores({key: column[chosen] for key, column in columns.items()}).values
        scores = {_head(metric): _format(metric, values[metric]) for metric in SERIES_METRICS if metric in values}
        rows.append({"series": name, **scores, "windows": int(chosen.sum())})
    unit = "the data's units" if task.target.size == 1 else "standard deviations of each column"
    note = (
        f"A backtest: every test window is a forecast from another date. MAE and RMSE are in {unit}. MASE is relative "
        "to repeating the season before, in training: below 1 is better than that."
    )
    if len(found) > LISTED_SERIES:
        note += f" The first {LISTED_SERIES} of {len(found)} series."
    return Table("Scores by series", rows, note)


def _head(metric: str) -> str:
    return f"within {metric.removeprefix('coverage_')} %" if metric.startswith("coverage_") else METRICS[metric].title


def _format(metric: str, value: float) -> str | float | None:
    if METRICS[metric].percent:
        return METRICS[metric].format(value)
    return float(f"{value:.4g}") if math.isfinite(value) else None


@torch.no_grad()
def _draw_errors(model: ForTask, task: Task, batch: int) -> PageBlock:
    """Chart the error of each step of a forecast."""
    assert isinstance(task.target, Values)
    square = absolute = n = torch.zeros(task.target.steps, task.target.size, dtype=torch.float64)
    for one in task.batches("test", batch=batch):
        off = (model.predict(one).values - get_targets(one)).double()
        square, absolute = square + off.square().nansum(0), absolute + off.abs().nansum(0)
        n = n + (~off.isnan()).sum(0)
    steps = [float(s) for s in range(1, task.target.steps + 1)]
    unit, label = 1.0, "error (training data scaled to variance 1)"
    if task.target.size == 1 and task.encoding is not None:
        unit, label = float(task.encoding.y.scale.deviation[0]), f"error in units of {task.target.names[0]}"
    curves = [
        Curve("root mean squared error", steps, (unit * (square / n).mean(-1).sqrt()).tolist()),
        Curve("mean absolute error", steps, (unit * (absolute / n).mean(-1)).tolist()),
    ]
    return Chart("Forecast error by horizon", "steps ahead", label, curves)


@torch.no_grad()
def describe_window(model: ForTask, task: WindowsTask, row: Batch) -> dict[str, Any]:
    """Describe one test window: its series, its first date, the truth and the forecast."""
    assert row.y is not None and row.series is not None
    position = int(row.rows[0])
    dates = task.list_window_dates("test", position)
    name = task.series_names[int(row.series[0])]
    fields: dict[str, Any] = {"series": name} if len(task.series_names) > 1 else {}
    fields |= {"window": position} if dates is None else {"from": str(dates[task.lookback])}
    true, predicted = _decode(task, row.y), _decode(task, model.predict(row).values)
    return fields | {"true": _list_numbers(true), "predicted": _list_numbers(predicted)}


def _list_numbers(values: list[float], most: int = 8) -> str:
    shown = " ".join("-" if math.isnan(v) else f"{v:.4g}" for v in values[:most])
    return f"{shown} ..." if len(values) > most else shown
