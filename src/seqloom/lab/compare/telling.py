"""A line for a person about each job that has ended."""

from __future__ import annotations

from seqloom.lab.compare.metric import metric
from seqloom.lab.compare.search import Comparison
from seqloom.lab.jobs.runner import Result


def told(found: Comparison, result: Result) -> str:
    name, value = result.key, result.value
    if value is None:
        return f"{name}: failed: {result.failed}"
    if "one" in value:
        return f"{name}: {1000 * value['one']:.3g} ms"
    if "memory" in value:
        return f"{name}: {1000 * value['step']:.3g} ms a step"
    one = metric(found.task.kind, value["valid"])
    return f"{name}: validation {one.name} {one.shown(value['valid'].get(one.name))}"
