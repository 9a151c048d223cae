"""Rows of series, drawn: one of each class, and those with the largest loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import Batch, Classes, Features, Task
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.kinds.pages.forecast_analysis import draw_window
from seqloom.lab.report.page import Chart, Curve, Gallery, Grid
from seqloom.lab.stats.metrics import Array

DRAWN_CLASSES = 12
DRAWN_FEATURES = 6  # more are drawn as shades
MOST_SCALES = 20.0  # a curve with a range 20 times smaller than another one's looks like a straight line
DRAWN_POINTS = 400  # evenly spaced steps that are drawn of a long series
SHADED_FEATURES, SHADED_STEPS = 32, 64  # evenly spaced ones, to keep the page small


def draw_classes(task: Task, batch: int) -> Gallery | None:
    """Draw the first test row of each class of a task that classifies series; None for other tasks."""
    if not (isinstance(task.input, Features) and isinstance(task.target, Classes)):
        return None
    names = task.target.names
    pictures: dict[int, Chart | Grid] = {}
    for one in task.batches("test", batch=batch):
        for k, label in enumerate(get_targets(one).tolist()):
            if 0 <= label < DRAWN_CLASSES and label not in pictures and int(one.lengths[k]):
                pictures[label] = draw_series(task, one.shard(k, len(one)), names[label])
        if len(pictures) == min(len(names), DRAWN_CLASSES):
            break
    note = f"The first {DRAWN_CLASSES} of {len(names)} classes." if len(names) > DRAWN_CLASSES else ""
    return Gallery("A test row of each class", [pictures[k] for k in sorted(pictures)], note) if pictures else None


def is_apart(task: Task, row: Batch, others: Sequence[Batch]) -> bool:
    """Return whether a window's forecast overlaps no forecast of the others; True for rows that are not windows."""
    if not isinstance(task, WindowsTask):
        return True
    return all(abs(int(row.rows[0]) - int(other.rows[0])) >= task.horizon for other in others)


def draw_row(model: ForTask, task: Task, row: Batch, fields: Mapping[str, Any]) -> Chart | Grid | None:
    """Draw a test row with its prediction: a window of a forecast, or a series; None for other inputs."""
    if isinstance(task, WindowsTask):
        name = ", ".join(str(fields[key]) for key in ("series", "from", "window") if key in fields)
        return draw_window(task, row, model.predict(row), int(row.rows[0]), f"{name} (loss {fields['loss']:.3g})")
    if not isinstance(task.input, Features) or not int(row.lengths[0]):
        return None
    true, predicted = (_shorten(str(fields[key])) for key in ("true", "predicted"))
    return draw_series(task, row, f"row {fields['row']}: true {true}, predicted {predicted}")


def draw_series(task: Task, row: Batch, title: str) -> Chart | Grid:
    """Draw the features of one row over its steps, in the units of the data where these are known.

    Features with ranges that differ by more than MOST_SCALES are drawn as the model reads them, in standard deviations.
    Many features are drawn as shades: features downwards and steps across, or steps downwards, like the rows of an
    image, if there are at most as many steps as features.
    """
    x, names = _read_features(task, row)
    if len(names) > DRAWN_FEATURES:
        steps, features = _choose(len(x), SHADED_STEPS), _choose(len(names), SHADED_FEATURES)
        values = [[float(f"{v:.3g}") for v in line] for line in x[steps][:, features]]
        down, across = [str(i) for i in steps], [names[i] for i in features]
        if len(x) > len(names):
            return Grid(title, across, down, [list(line) for line in zip(*values, strict=True)])
        return Grid(title, down, across, values)
    ranges = np.ptp(x, axis=0)
    y_label = ""
    if len(names) > 1 and np.nanmax(ranges) > MOST_SCALES * np.nanmin(ranges[ranges > 0], initial=np.inf):
        x, y_label = row.x[0, : len(x), : len(names)].numpy(), "standard deviations"
    steps = _choose(len(x), DRAWN_POINTS)
    curves = [Curve(name, [float(t) for t in steps], x[steps, i].tolist()) for i, name in enumerate(names)]
    return Chart(title, "", y_label, curves)


def _choose(count: int, most: int) -> list[int]:
    """Return up to `most` evenly spaced positions out of `count`."""
    chosen: list[int] = np.unique(np.linspace(0, count - 1, min(most, count)).astype(int)).tolist()
    return chosen


def _read_features(task: Task, row: Batch) -> tuple[Array, list[str]]:
    """Return the values (T, D) of a row and the names of its features, without the masks of missing values."""
    assert isinstance(task.input, Features)
    x = row.x[0, : int(row.lengths[0])].numpy()
    kept = [i for i, name in enumerate(task.input.names) if not name.startswith("missing:") and i < x.shape[1]]
    names = [task.input.names[i] for i in kept]
    coder = task.encoding.x if task.encoding is not None else None
    if isinstance(coder, SeriesCoder):
        decoded = np.asarray(coder.decode(x), dtype=float)
        return decoded, names[: decoded.shape[1]]
    return x[:, kept].astype(float), names


def _shorten(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
