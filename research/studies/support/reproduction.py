"""Printed numbers against ours: which were reproduced, and by how much the others differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from research.studies.support.metric import TrialMetric
from research.studies.support.outcome import Group, format_score

FACTOR = 2.0  # an error is reproduced within this factor of the printed one
POINTS = 0.05  # an accuracy is reproduced within this difference of the printed one
LISTED = 4  # numbers named for each kind of difference


def is_reproduced(printed: float, values: Sequence[float], metric: TrialMetric) -> bool:
    """Return whether a printed number lies among the seeds, or near their mean (FACTOR for errors, POINTS else)."""
    if not values:
        return False
    if min(values) <= printed <= max(values):
        return True
    mean = sum(values) / len(values)
    if metric.scale == "log":
        return printed / FACTOR <= mean <= printed * FACTOR
    if metric.scale == "logit":
        return abs(mean - printed) <= POINTS
    raise NotImplementedError(f"no rule says when a printed {metric.name} is reproduced")


def describe_reproduction(
    groups: Sequence[Group],
    metric: TrialMetric,
    find_printed: Callable[[Group], float | None],
    not_run: Sequence[str] = (),
) -> str:
    """Return a sentence that starts with "Reproduced" or "Not reproduced" and names the numbers that differ most.

    Args:
        groups: The results.
        metric: The printed metric.
        find_printed: Returns the printed number of a group, or None.
        not_run: Conditions of the article that were not run.
    """
    printed = [(g, value) for g in groups if (value := find_printed(g)) is not None]
    if not printed:
        return ""
    apart: dict[str, list[tuple[float, str]]] = {"worse": [], "better": []}
    for g, value in printed:
        values = [v for v in g.values(metric.name) if v is not None]
        if is_reproduced(value, values, metric):
            continue
        mean = sum(values) / len(values) if values else None
        kind = "better" if mean is not None and (mean < value) == metric.lower else "worse"
        text = f"{g.model}, {g.condition}: {format_score(mean)} against {format_score(value)}"
        apart[kind].append((_distance(mean, value, metric), text))
    missed = sum(map(len, apart.values()))
    total = f"{len(printed) - missed} of {len(printed)} printed numbers"
    total += f" (not run: {'; '.join(not_run)})" if not_run else ""
    if not missed:
        return f"Reproduced: {total}."
    parts = []
    for kind, differing in apart.items():
        if differing:
            ordered = [text for _, text in sorted(differing, key=lambda pair: -pair[0])]
            more = f"; {len(ordered) - LISTED} more" if len(ordered) > LISTED else ""
            parts.append(f"{kind} than printed: {'; '.join(ordered[:LISTED])}{more}")
    return f"Not reproduced: {'. '.join(_capitalise(parts))}. Reproduced: {total}."


def _distance(mean: float | None, printed: float, metric: TrialMetric) -> float:
    """Return how far a mean is from the printed number: as a factor for errors, in points for accuracies."""
    if mean is None:
        return float("inf")
    if metric.scale != "log":
        return abs(mean - printed)
    low, high = sorted((max(mean, 1e-12), max(printed, 1e-12)))
    return high / low


def _capitalise(parts: list[str]) -> list[str]:
    """Start every part but the first with a capital letter: each is a sentence."""
    return parts[:1] + [part[0].upper() + part[1:] for part in parts[1:]]
