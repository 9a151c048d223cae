"""Find the series of a long table, in which every row is a step or an event, and whether its rows have an order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.columns import is_id_name
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TableRequest, TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import INPUTS, TARGETS, Kind, find_kind

DEFAULTS = Reading()
FEWEST_STEPS = 3  # steps per series, on average
FEWEST_PIECES = 10  # pieces of a table that is one series
NAMING_ROLES = ("id", "label", "category", "text", "number")  # roles of a column that may name series
NAME_ROLES = ("label", "category")  # roles of a column with the names of events
Array = np.ndarray[Any, Any]
MOST_ROWS = 10_000  # rows from which is decided whether they have an order
LAGS = 12  # steps between rows that are correlated
CERTAIN = 4.5  # standard errors beyond which the largest of a few dozen correlations is not chance
FEWEST_ROWS = 30  # with fewer, no correlation is certain


def list_long_choices(request: TableRequest) -> list[TaskPlan]:
    """List plans for series with one label or number each, which is the same in all rows of a series.

    Without options, a label has to be the only constant one. A table with dates is left to forecasts, unless the name
    of its label says that it is a target.
    """
    columns, options, time = request.columns, request.options, request.time
    if not options.form.reads_groups:
        return []
    numbers = [c.name for c in columns if c.is_numeric and c.role != "constant" and c.name != time]
    if options.input and not set(options.input) <= set(numbers):
        return []
    plans = []
    tags = [c.name for c in columns if c.role in ("label", "category") and c.name not in (*options.input, time)]
    is_tagged = options.form.target == "tags"  # without a column that names series, the table is one series
    for kind, group, target in _list_tags(request, tags) if is_tagged else list_series(request):
        names = options.input or tuple(n for n in numbers if n not in (group, target))
        if names and target != group:
            plans.append(TaskPlan(kind, names, (target,), "long", group, time, request.split))
    return plans


def list_series(request: TableRequest) -> Iterator[tuple[Kind, str, str]]:
    """List what may be predicted of whole series: the kind of task, the column that names the series, the target."""
    for target in _list_targets(request):
        group = find_group(request, target.name)
        if group is not None:
            kind = request.options.kind or find_kind("class" if target.role != "number" else "numbers")
            yield kind, group, target.name


def _list_tags(request: TableRequest, names: Sequence[str]) -> Iterator[tuple[Kind, str | None, str]]:
    """List the tags that every row of a long table may have, as `list_series` does."""
    for target in request.options.target or names:
        yield find_kind("tags"), request.options.group or find_group(request, None, but=target), target


def _list_targets(request: TableRequest) -> list[Column]:
    """List the columns that may be the target of a whole series."""
    columns, options = request.columns, request.options
    if options.target:
        return [c for c in columns if options.target == (c.name,) and c.role in ("label", "number", "category", "text")]
    labels = [c for c in columns if c.role == "label" and c.name not in (*options.input, options.group)]
    is_dated = any(c.name == request.time and c.is_string for c in columns)
    if is_dated and options.kind is None:
        labels = [c for c in labels if c.name.lower() in TARGETS]
    return labels


def find_group(request: TableRequest, target: str | None, but: str | None = None) -> str | None:
    """Return the column that identifies the series: the given one, otherwise the likeliest by name and content.

    With a `target`, each series has one value of it, and is a run of consecutive rows or has no time stamp twice.
    Without one, only a column with the name of an id is found. The column `but` is not considered.
    """
    columns, source, options, time = request.columns, request.source, request.options, request.time
    taken = (*options.input, *options.target, time, options.split, target, but)
    names = [
        c for c in columns if c.role in NAMING_ROLES and c.name not in taken and (c.is_whole or c.role != "number")
    ]
    names = [c for c in names if 1 < c.distinct * FEWEST_STEPS <= source.rows]
    if options.group:
        names = [c for c in columns if c.name == options.group]
    numbers = [c.name for c in columns if c.role == "number"]
    for column in sorted(names, key=lambda c: (not is_id_name(c.name), c.role != "id", not c.is_string)):
        rows = source.columns(*dict.fromkeys(n for n in (column.name, target, time) if n))
        if target is not None and not _is_constant(rows, column.name, target, target in numbers):
            continue
        is_certain = target is not None and _are_series(rows, column.name, time)
        if options.group or is_id_name(column.name) or is_certain:
            return column.name
    return None


def _is_constant(rows: pl.DataFrame, group: str, target: str, is_number: bool) -> bool:
    """Return whether every series has one target, and some label more than one series; numbers may all differ."""
    pairs = rows.select(group, target).drop_nulls().unique()
    return pairs[group].n_unique() == len(pairs) and (is_number or pairs[target].n_unique() < len(pairs))


def _are_series(rows: pl.DataFrame, group: str, time: str | None) -> bool:
    """Return whether the rows of every group are consecutive, or have different time stamps."""
    if time is not None and not rows.select(group, time).is_duplicated().any():
        return True
    return rows[group].rle().len() == rows[group].n_unique()


def shorten_pieces(source: Source, plan: TaskPlan, options: Reading) -> Reading:
    """Shorten the pieces of a table that is one series, so that there are enough to train, validate and test.

    Raises:
        UserError: If the user's `lookback` leaves fewer than three pieces.
    """
    if plan.layout != "long" or plan.group is not None or source.rows >= FEWEST_PIECES * options.lookback:
        return options
    if options.lookback == DEFAULTS.lookback:
        return options.model_copy(update={"lookback": max(1, source.rows // FEWEST_PIECES)})
    if len(source.parts) == 1 and source.rows <= 2 * options.lookback:
        raise UserError(
            f"the table is one series of {count(source.rows, 'row')}; pieces of {options.lookback} steps leave none to "
            f"train on; set lookback=... to {max(1, source.rows // FEWEST_PIECES)} or less"
        )
    return options


def warn_of_no_order(plan: TaskPlan, source: Source, notes: Notes) -> None:
    """Warn if a task needs rows in time order, but the table has no time stamps and its rows look independent."""
    is_series = plan.layout == "table" or (plan.layout == "long" and plan.group is None)
    if not is_series or plan.time or plan.group:
        return
    labels = plan.target if plan.form.target == "tags" else ()
    names = [n for n in plan.input if n not in labels]
    schema = source.frame().collect_schema()
    numbers = [name for name in names if schema[name].is_numeric()]
    if numbers and not have_order(source.columns(*numbers, *labels), numbers, labels):
        notes.warn(
            "no row depends on those before it; if the rows are in no order, they are not a sequence, and gradient "
            "boosting is the right tool for them"
        )


def mention_other_series(plan: TaskPlan, request: TableRequest, notes: Notes) -> None:
    """Note which series were found and, if a forecast was chosen, which label of whole series could be predicted."""
    options = request.options
    if plan.layout == "wide":
        notes.say(
            f"each row is read as one series whose steps are its {len(plan.input)} columns of numbers, "
            f"{plan.input[0]!r} to {plan.input[-1]!r}; if they are different measurements and not steps, gradient "
            "boosting is the right tool"
        )
    elif plan.layout == "long" and plan.group is None:
        notes.say(
            f"the table is one series, cut into pieces of {options.lookback} steps (lookback=...); the last ones are "
            "held out; if a column names several series, choose it with group=..."
        )
    elif plan.layout == "long" and not options.group:
        is_event = any(c.name in plan.input and c.is_string for c in request.columns)
        series = f"one sequence of {plan.input[0]!r}" if is_event else "one series"
        notes.say(f"each {plan.group!r} is {series}; choose another column with group=...")
    elif plan.form.target == "series" and options.kind is None and not options.target:
        asked = request.ask(kind=find_kind("class"), time=plan.time, split=plan.split)
        free = [c for c in request.columns if c.name != plan.time]
        for other in list_long_choices(replace(asked, columns=free))[:1]:
            label = other.target[0]
            notes.say(f"each {other.group!r} has one {label!r}; to predict that, give target={label} kind={other.kind}")


def list_event_choices(request: TableRequest) -> list[TaskPlan]:
    """List plans that read one column of names, of a log of events, as the steps of each series.

    A series has one label or number, or a label for each event if tags are asked for. Unless the input is named,
    columns of numbers, if there are any besides those that only count the time of a series, are read instead of names.
    """
    columns, source, options = request.columns, request.source, request.options
    if not options.form.reads_groups or len(options.input) > 1:
        return []
    time, split = request.time, request.split
    names = _list_names(request, (time, split))
    if not names or (not options.input and any(c.role in INPUTS for c in columns)):
        return []
    if options.form.target == "tags":
        group = options.group or find_group(request, None)
        names = [name for name in names if name != group]  # without a named input, the most varied one
        if group is None or not names or (not options.input and _has_measurements(request, (group, time))):
            return []
        labels = [c.name for c in columns if c.role in NAME_ROLES and c.name not in (group, names[0])]
        targets = options.target or tuple(labels)
        return [TaskPlan(find_kind("tags"), (names[0],), (name,), "long", group, time, split) for name in targets]
    plans = []
    for kind, group, target in list_series(request):
        if options.input or not _has_measurements(request, (group, target, time)):
            others = [name for name in names if name not in (group, target) and _varies(source, group, name)]
            plans += [TaskPlan(kind, (name,), (target,), "long", group, time, split) for name in others]
    return plans


def find_events_without_target(request: TableRequest) -> tuple[str, str] | None:
    """Return the column of the series and that of the events of a log whose series have nothing to predict."""
    source, names = request.source, _list_names(replace(request, options=DEFAULTS), ())
    for group in [c for c in request.columns if c.role in ("id", "category", "label")]:
        if not 1 < group.distinct * FEWEST_STEPS <= source.rows:
            continue
        series = source.columns(group.name)[group.name]
        if series.rle().len() != series.n_unique():
            continue
        for name in names:
            if name != group.name and _varies(source, group.name, name):
                return group.name, name
    return None


def _list_names(request: TableRequest, taken: Sequence[str | None]) -> list[str]:
    """List the columns that may hold the names of events, the most varied first."""
    options = request.options
    others = (options.group, *options.target, *taken)
    names = [c for c in request.columns if c.is_string and c.role in NAME_ROLES and c.name not in others]
    return [c.name for c in sorted(names, key=lambda c: -c.distinct) if c.name in (options.input or (c.name,))]


def _has_measurements(request: TableRequest, taken: Sequence[str | None]) -> bool:
    """Return whether a column of numbers does more than increase within each series, which column taken[0] names."""
    group = str(taken[0])
    columns = [c for c in request.columns if c.is_numeric and c.role not in ("id", "constant")]
    numbers = [c.name for c in columns if c.name not in taken]
    if not numbers:
        return False
    rows = request.source.columns(group, *numbers)
    falls = rows.select((pl.col(name).diff().over(group) < 0).any().alias(name) for name in numbers)
    return any(falls.row(0))


def _varies(source: Source, group: str, name: str) -> bool:
    """Return whether some series has several values of a column."""
    pairs = source.columns(group, name).unique()
    return len(pairs) > pairs[group].n_unique()


def have_order(rows: pl.DataFrame, numbers: Sequence[str], labels: Sequence[str] = ()) -> bool:
    """Return whether rows depend on the preceding rows more than expected by chance.

    Either a column of numbers is autocorrelated after the mean of each label is subtracted (a table may only be sorted
    by its label), or a label tends to repeat that of the previous row. True if there are too few rows to tell.
    """
    rows = rows.head(MOST_ROWS)
    if len(rows) < FEWEST_ROWS:
        return True
    bound = CERTAIN / math.sqrt(len(rows))
    kinds = [rows[name].cast(pl.String).fill_null("").rank("dense").to_numpy().astype(int) - 1 for name in labels]
    if any(_measure_persistence(kind) > bound for kind in kinds):
        return True
    for name in numbers:
        values = rows[name].cast(pl.Float64, strict=False).to_numpy()
        for kind in kinds or [np.zeros(len(rows), dtype=int)]:
            if _measure_correlation(values, kind) > bound:
                return True
    return False


def _measure_persistence(kind: Array) -> float:
    """Return how much more often than by chance a label repeats the previous one; 0 if the rows are sorted by it."""
    runs = 1 + int((kind[1:] != kind[:-1]).sum())
    if runs <= len(np.unique(kind)):
        return 0.0
    expected = float(((np.bincount(kind) / len(kind)) ** 2).sum())
    return (float((kind[1:] == kind[:-1]).mean()) - expected) / max(0.1, 1 - expected)


def _measure_correlation(values: Array, kind: Array) -> float:
    """Return the largest correlation with earlier values, after the mean of each label is subtracted."""
    known = np.isfinite(values)
    clean = np.where(known, values, 0.0)
    means = np.bincount(kind, clean) / np.maximum(1, np.bincount(kind, known))
    d = np.where(known, clean - means[kind], 0.0)
    total = float(d @ d)
    if total == 0:
        return 0.0
    return max(abs(float(d[lag:] @ d[:-lag])) / total for lag in range(1, LAGS + 1))
