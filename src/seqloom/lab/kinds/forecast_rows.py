"""Forecasts in long format: one row for each series, target and date."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from seqloom.lab.data.task import Task
from seqloom.lab.kinds.results import get_values

Result = dict[str, Any]
ENDS = ("lower_", "upper_")


def lengthen_forecasts(results: Iterable[Result], task: Task) -> Iterator[Result]:
    """Yield one row for each target and step of each forecast.

    A row has the columns of its series, "target" if there are several, "date" (or "step", counted from 1, without time
    stamps), "forecast", and the ends of its intervals.

    Args:
        results: What `predict` yields, one for each series.
        task: The task of the forecasts.
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
                yield series | target | when | {key: _round(number) for key, number in numbers.items()}


def _round(number: float | None) -> float | None:
    """Round to the digits of float32, in which models compute."""
    return None if number is None else float(f"{number:.7g}")
