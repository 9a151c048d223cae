"""Parts of results: what `predict` returns for each row; forecasts with one row for each date."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from seqloom.lab.data.task import Task, Values
from seqloom.lab.kinds.for_task import Prediction

Result = dict[str, Any]
ENDS = ("lower_", "upper_")


def round_all(p: Tensor) -> list[Any]:
    """Return probabilities as Python numbers with six decimals, the precision of float32."""
    return torch.round(p.double(), decimals=6).tolist()


def pick_best(prediction: Prediction) -> Tensor:
    """Return the probability of each predicted class, on the CPU."""
    assert prediction.probabilities is not None
    return prediction.probabilities.gather(-1, prediction.values.unsqueeze(-1)).squeeze(-1).cpu()


def get_values(task: Task) -> Values:
    """Return the numbers that a task predicts.

    Raises:
        TypeError: If its targets are not numbers.
    """
    if not isinstance(task.target, Values):
        raise TypeError(f"the targets of task {task.name!r} are {task.target}, not numbers")
    return task.target


def build_value_results(task: Task, prediction: Prediction) -> list[Result]:
    """Return numbers in the units of the data, with the ends of their intervals."""
    target, values = get_values(task), task.decode(prediction.values, prediction.lengths)
    columns = {"prediction": values}
    for level, bounds in (prediction.bounds or {}).items():
        low, high = (task.decode(bound) for bound in bounds)
        columns |= {f"lower_{level}": _drop_infinite(low), f"upper_{level}": _drop_infinite(high)}
    return [
        {name: _name_numbers(target, column[row]) for name, column in columns.items()} for row in range(len(values))
    ]


def _name_numbers(target: Values, value: list[Any]) -> object:
    """Return the number or list of a single target as it is, those of several targets by name."""
    by_name = list(map(list, zip(*value, strict=True))) if value and isinstance(value[0], list) else value
    return by_name[0] if target.size == 1 else dict(zip(target.names, by_name, strict=True))


def _drop_infinite(values: list[Any]) -> list[Any]:
    """Replace infinite numbers in nested lists with None."""
    return [
        _drop_infinite(v) if isinstance(v, list) else None if isinstance(v, float) and math.isinf(v) else v
        for v in values
    ]


def lengthen_forecasts(results: Iterable[Result], task: Task) -> Iterator[Result]:
    """Yield one row for each target and step of each forecast.

    A row has the columns of its series, "target" if there are several, "date" (or "step", counted from 1, without time
    stamps), "forecast", and the ends of its intervals.
    """
    names = get_values(task).names
    for result in results:
        ends = [key for key in result if key.startswith(ENDS)]
        series = {key: value for key, value in result.items() if key not in ("date", "prediction", *ends)}
        if result["prediction"] is None:  # no past, or an error
            yield series | dict.fromkeys(("date", "forecast", *ends))
            continue
        for name in names:
            target = {"target": name} if len(names) > 1 else {}
            columns = {key: result[key][name] if target else result[key] for key in ("prediction", *ends)}
            for step, value in enumerate(columns["prediction"]):
                when = {"date": result["date"][step]} if "date" in result else {"step": step + 1}
                numbers = {"forecast": value} | {key: columns[key][step] for key in ends}
                yield (
                    series | target | when | {key: number and float(f"{number:.7g}") for key, number in numbers.items()}
                )
