"""Explain why no task fits the request, and name the closest one that is possible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.columns import DAY_FIRST, STAMP
from seqloom.lab.data.pipeline.event_logs import find_events_without_target
from seqloom.lab.data.pipeline.order import have_order
from seqloom.lab.data.pipeline.plan import list_choices, list_flags
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column
from seqloom.lab.kinds.forms import FORMS, describe_kind, find_kind

MOST_COLUMNS = 12  # columns that a message lists


def explain_refusal(columns: Sequence[Column], source: Source, options: Reading) -> str:
    """Explain why the requested task cannot be learned, with the closest one that can.

    Args:
        columns: All columns.
        source: The data.
        options: The request; no plan fits it.
    """
    by_name = {c.name: c for c in columns}
    if unordered := _describe_unordered(columns, source, options):
        return unordered
    if not (options.input or options.target or options.kind):
        listed = ", ".join(f"{c.name} ({c.role})" for c in columns[:MOST_COLUMNS])
        named = "choose input=..., target=... and kind=..."
        if advice := _advise_on_series(columns, source) or _advise_on_events(columns, source, options):
            return advice
        kinds = [kind for kind in FORMS if _list_plans(columns, source, options.model_copy(update={"kind": kind}))]
        advice = f"what works is kind={kinds[0]}" if kinds else named
        if not kinds or any(_looks_like_date(c) for c in columns):
            advice = _advise_on_dates(columns) or _advise_on_counts(columns, source, options) or advice
        return f"no task fits the columns {listed}; {advice}"
    problem = _find_problem([by_name[n] for n in options.input], [by_name[n] for n in options.target], options)
    nearest = _find_nearest(columns, source, options)
    if nearest is None:
        return problem
    flags = " ".join(f"{name}={value}" for name, value in list_flags(nearest).items())
    return f"{problem}; what works is {flags}"


def _advise_on_series(columns: Sequence[Column], source: Source) -> str:
    """Return how to predict a number that each series of a long table has; "" if there is none."""
    for name in [c.name for c in columns if c.role == "number"]:
        plans = _list_plans(columns, source, Reading(target=(name,), kind=find_kind("numbers")))
        if plans and plans[0].group:
            return f"each {plans[0].group!r} is a series with one {name!r}; to predict it, give target={name}"
    return ""


def _advise_on_events(columns: Sequence[Column], source: Source, options: Reading) -> str:
    """Return what a log of events without a target lacks, or how to label its events; "" for other tables."""
    events = find_events_without_target(columns, source)
    if events is None:
        return ""
    group, name = events
    asked = options.model_copy(update={"input": (name,), "group": group, "kind": find_kind("tags")})
    labels = [plan.target[0] for plan in _list_plans(columns, source, asked)]
    if labels:
        targets = " or ".join(f"target={label}" for label in labels[:MOST_COLUMNS])
        return (
            f"each {group!r} is a sequence of {name!r}, but has no label or number of its own; to predict a label for "
            f"each {name!r}, give kind={asked.kind} and {targets}"
        )
    return (
        f"each {group!r} is a sequence of {name!r}, but has no label or number to predict; add one as a column, equal "
        f"in all rows of one {group!r} (if it is in another file, join the two first)"
    )


def _describe_unordered(columns: Sequence[Column], source: Source, options: Reading) -> str:
    """Return what a table of numbers and labels without an order lacks, and what to use instead; "" for others."""
    if options.group or options.time or options.form.target not in (None, "class", "numbers"):
        return ""
    if any(c.role not in ("number", "label", "category", "constant", "id") or _looks_like_date(c) for c in columns):
        return ""
    labels = [c.name for c in columns if c.role == "label"]
    numbers = [c.name for c in columns if c.role == "number"]
    if not (labels and numbers) or have_order(source.columns(*numbers, *labels), numbers, labels):
        return ""
    tool = "HistGradientBoostingRegressor" if options.form.target == "numbers" else "HistGradientBoostingClassifier"
    listed = "a column of numbers" if len(numbers) == 1 else f"{len(numbers)} columns of numbers"
    names = f"the label{'s' * (len(labels) > 1)} {', '.join(map(repr, labels))}"
    return (
        f"its rows are not sequences: there are {listed} and {names}, no text, list or time stamps, and no row depends "
        f"on those before it; use gradient boosting for such a table (scikit-learn's {tool}), or say what makes rows a "
        f"sequence: group=... names the column of series, time=... that of times, and kind={find_kind('tags')} gives "
        "each row a label if all rows are steps of one series"
    )


def _looks_like_date(column: Column) -> bool:
    """Return whether the first value of a column is a time stamp, although the column was not read as times."""
    is_date = re.match(STAMP, column.example) or re.match(DAY_FIRST, column.example)
    return column.is_string and column.role in ("id", "text", "category", "label") and bool(is_date)


def _advise_on_dates(columns: Sequence[Column]) -> str:
    """Return how to repair a column whose dates have several forms; "" if there is none."""
    dates = [c for c in columns if _looks_like_date(c)]
    if not dates:
        return ""
    return (
        f"{dates[0].name!r} begins with a date, but not all its values are dates of that form; write all as 2026-12-31"
    )


def _advise_on_counts(columns: Sequence[Column], source: Source, options: Reading) -> str:
    """Return how to forecast a column that looks as if it counted the rows; "" if there is none."""
    for name in [c.name for c in columns if c.role == "id" and not c.is_string]:
        forecast = {"target": (name,), "kind": find_kind("series")}
        if _list_plans(columns, source, options.model_copy(update=forecast)):
            how = f"target={name} kind={forecast['kind']}"
            return f"{name!r} seems to count the rows; if it is measured, forecast it with {how}"
    return ""


def _find_problem(inputs: Sequence[Column], targets: Sequence[Column], options: Reading) -> str:
    kind = options.kind
    sides = [
        f"{name} {', '.join(f'{c.name} ({c.role})' for c in some)}"
        for name, some in (("input", inputs), ("target", targets))
        if some
    ]
    asked = f"{' and '.join(sides)} cannot be used" if sides else "these columns cannot be used"
    lists = [c for c in targets if c.role in ("tokens", "tags", "series")]
    if lists and options.form.target in (None, "class"):
        name = lists[0].name
        if kind:
            return f"the target {name!r} holds lists, and a row has one label to classify"
        return f"the target {name!r} holds lists; use kind={find_kind('labels')} for lists of labels"
    if len(targets) > 1 and options.form.target != "series" and not all(c.is_numeric for c in targets):
        return f"{len(targets)} targets ({', '.join(c.name for c in targets)}); one model predicts one label: give one"
    no_sequence = inputs and not any(c.role in ("text", "tokens", "series", "audio") for c in inputs)
    if no_sequence and options.form.target in (None, "class", "numbers") and not all(c.is_numeric for c in inputs):
        return f"{asked}: rows without a text, series or recording are no sequences; use gradient boosting for them"
    return f"{asked}" + (
        f" to {describe_kind(kind)}, which {options.form.needs}" if kind else "; name the kind of task with kind=..."
    )


def _find_nearest(columns: Sequence[Column], source: Source, options: Reading) -> TaskPlan | None:
    """Return a plan that keeps as many of the options as possible, first the target, then the input."""
    changes: tuple[dict[str, Any], ...] = (
        {"kind": None},
        {"kind": find_kind("tags")},
        {"input": ()},
        {"input": (), "kind": None},
        {"target": (), "kind": None},
    )
    numbers = {c.name for c in columns if c.role == "number"}
    for change in changes:
        fewer = options.model_copy(update=change)
        plans = _list_plans(columns, source, fewer) if fewer != options and (fewer.input or fewer.target) else []
        for plan in plans:
            if plan.form.target != "tags" or not numbers.intersection(plan.target):  # tags are names
                return plan
    return None


def _list_plans(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List the plans that have a target; none if the options cannot be combined."""
    try:
        return [plan for plan in list_choices(columns, source, options) if plan.form.target != "next"]
    except UserError:
        return []
