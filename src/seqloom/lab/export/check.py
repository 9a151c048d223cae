"""Compare an exported model with its run, on rows of three lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.coders.text import JoinedTextCoder, SubwordCoder, TextCoder
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.results import get_values
from seqloom.lab.training.predict import predict_pieces

LENGTHS = (1, 9, 40)  # steps of the rows that are compared
ROWS = 3  # rows of each length
TOLERANCE = 1e-4  # largest difference, relative to values above 1; float32 in another order of sums
TEXT = "It's a <b>Test</b>: Straße, ΟΔΟΣ, हिन्दी, 你好, 1,5 don\u2019t"  # what a tokenizer may get wrong
NUMBERS = (int, float)
Predict = Callable[[Sequence[Any]], list[dict[str, Any]]]


class CheckError(RuntimeError):
    """Raised when the predictions of an exported model differ from those of its run, which is a bug in the export."""


def make_rows(task: Task) -> list[Any]:
    """Generate rows of three lengths that look like the task's data.

    Args:
        task: A task that was read from files.
    """
    assert task.encoding is not None
    chance, coder = random.Random(0), task.encoding.x
    rows = [_make_row(coder, task, n, chance) for n in LENGTHS for _ in range(ROWS)]
    if isinstance(coder, TextCoder | SubwordCoder):
        rows.append(TEXT.split() if coder.unit == "tokens" else TEXT)
    return rows


def _make_row(coder: Any, task: Task, n: int, chance: random.Random) -> Any:  # noqa: ANN401  # any row
    if isinstance(coder, JoinedTextCoder):
        return {name: _make_row(coder.inner, task, n, chance) for name in coder.columns}
    if isinstance(coder, TextCoder):
        words = coder.words or ["a", "b", " ", "é"]
        chosen = [chance.choice(words) for _ in range(n)]
        return chosen if coder.unit == "tokens" else ("" if coder.unit == "characters" else " ").join(chosen)
    if isinstance(coder, SubwordCoder):
        return " ".join(chance.choice(TEXT.split()) for _ in range(n))
    if isinstance(coder, SeriesCoder):
        n = len(coder.columns) if coder.wide else n
        values = _draw_numbers(coder.scale.mean, coder.scale.deviation, n, chance)
        if coder.wide or len(coder.columns) == 1:
            return values[:, 0].tolist() if values.shape[1] == 1 else values.tolist()
        return dict(zip(coder.columns, values.T.tolist(), strict=True))
    assert isinstance(coder, TableCoder)
    target = get_values(task)
    steps = max(1, min(n, task.lookback))
    numbers = _draw_numbers(coder.scale.mean, coder.scale.deviation, steps + target.steps, chance)
    row: dict[str, Any] = dict(zip(coder.numbers, numbers.T.tolist(), strict=True))
    row |= {
        name: [chance.choice(values) for _ in range(steps + target.steps)] for name, values in coder.categories.items()
    }
    return {name: values if name in coder.known else values[:steps] for name, values in row.items()}


def _draw_numbers(
    mean: np.ndarray[Any, Any], deviation: np.ndarray[Any, Any], n: int, chance: random.Random
) -> np.ndarray[Any, Any]:
    noise = np.array([[chance.gauss(0, 1) for _ in range(len(mean))] for _ in range(n)])
    return mean + deviation * noise.reshape(n, len(mean))


def compare_predictions(model: ForTask, task: Task, predict: Predict) -> tuple[float, int]:
    """Compare the predictions of an exported model with those of the run's model.

    Args:
        model: The run's model.
        task: Its task.
        predict: Returns the results of rows, as `seqloom predict` writes them, with the probabilities of all classes.

    Returns:
        The largest difference, and the number of rows.

    Raises:
        CheckError: If a difference is above the tolerance.
    """
    rows = make_rows(task)
    expected = list(predict_pieces(model, task, [rows], probabilities=True))
    actual = predict(rows)
    worst, units = 0.0, _list_units(task)
    for number, (ours, theirs) in enumerate(zip(expected, actual, strict=True), 1):
        for key in ours:
            if key != "date":
                worst = max(worst, measure_difference(ours[key], theirs.get(key), f"row {number}, {key}", units))
    if worst > TOLERANCE:
        raise CheckError(f"the exported model differs from its run by {worst:.1e}, more than {TOLERANCE:.0e}")
    return worst, len(rows)


def _list_units(task: Task) -> dict[str, float]:
    """Return the deviation of each target; "" is that of a single one."""
    assert task.encoding is not None
    if not kind_of(task).has_values:
        return {}
    deviations = task.encoding.y.scale.deviation.tolist()
    return dict(zip(get_values(task).names, deviations, strict=True)) | {"": deviations[0]}


def measure_difference(
    ours: object, theirs: object, where: str, units: Mapping[str, float] = {}, name: str = ""
) -> float:
    """Return the largest difference of numbers in nested values, relative to their size or unit if that is above 1.

    Args:
        ours: What the run predicts.
        theirs: What the exported model predicts.
        where: For the error message.
        units: The unit of the values with a name.
        name: The name of these values.

    Raises:
        CheckError: If the values differ in kind, or names differ.
    """
    if isinstance(ours, NUMBERS) and isinstance(theirs, NUMBERS):
        if ours == theirs:
            return 0.0
        unit = max(1.0, abs(ours), units.get(name, 1.0))
        return abs(ours - theirs) / unit if math.isfinite(theirs) else math.inf
    if isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        return max((measure_difference(ours[k], theirs[k], where, units, k) for k in ours), default=0.0)
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = zip(ours, theirs, strict=True)
        return max((measure_difference(a, b, where, units, name) for a, b in pairs), default=0.0)
    if ours != theirs:
        raise CheckError(f"the exported model predicts {str(theirs)[:60]} for {where}, its run {str(ours)[:60]}")
    return 0.0
