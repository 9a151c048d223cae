"""Find the sequences in a log of events: every row is one named event, and a column identifies its series."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from seqloom.lab.data.pipeline.long_tables import FEWEST_STEPS, find_group, list_series
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column
from seqloom.lab.kinds.forms import INPUTS, find_kind

NAME_ROLES = ("label", "category")  # roles of a column with the names of events


def list_event_choices(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List plans that read one column of names as the steps of each series.

    A series has one label or number, or a label for each event if tags are asked for. Unless the input is named,
    columns of numbers, if there are any besides those that only count the time of a series, are read instead of names.
    """
    if not options.form.reads_groups or len(options.input) > 1:
        return []
    time = options.time or next((c.name for c in columns if c.role == "time" and c.name != options.group), None)
    split = options.split or next((c.name for c in columns if c.role == "split"), None)
    names = _list_names(columns, options, (time, split))
    if not names or (not options.input and any(c.role in INPUTS for c in columns)):
        return []
    if options.form.target == "tags":
        return _list_tag_choices(columns, source, options, names, time, split)
    plans = []
    for kind, group, target in list_series(columns, source, options, time):
        if not options.input and _has_measurements(columns, source, (group, target, time)):
            continue
        for name in [c.name for c in names if c.name not in (group, target)]:
            if _varies(source, group, name):
                plans.append(TaskPlan(kind, (name,), (target,), "long", group, time, split))
    return plans


def find_events_without_target(columns: Sequence[Column], source: Source) -> tuple[str, str] | None:
    """Return the column of the series and that of the events of a log whose series have nothing to predict."""
    names = _list_names(columns, Reading(), ())
    for group in [c for c in columns if c.role in ("id", "category", "label")]:
        if not 1 < group.distinct * FEWEST_STEPS <= source.rows:
            continue
        series = source.columns(group.name)[group.name]
        if series.rle().len() != series.n_unique():
            continue
        for name in [c.name for c in names if c.name != group.name]:
            if _varies(source, group.name, name):
                return group.name, name
    return None


def _list_names(columns: Sequence[Column], options: Reading, taken: Sequence[str | None]) -> list[Column]:
    """List the columns that may hold the names of events, the most varied first."""
    others = (options.group, *options.target, *taken)
    names = [c for c in columns if c.is_string and c.role in NAME_ROLES and c.name not in others]
    return sorted((c for c in names if c.name in (options.input or (c.name,))), key=lambda c: -c.distinct)


def _list_tag_choices(
    columns: Sequence[Column],
    source: Source,
    options: Reading,
    names: Sequence[Column],
    time: str | None,
    split: str | None,
) -> list[TaskPlan]:
    """List plans that give each event a label; without a named input, events are the most varied names."""
    group = options.group or find_group(columns, source, options, time, None)
    names = [c for c in names if c.name != group]
    if group is None or not names or (not options.input and _has_measurements(columns, source, (group, time))):
        return []
    labels = [c.name for c in columns if c.role in NAME_ROLES and c.name not in (group, names[0].name)]
    targets = options.target or tuple(labels)
    return [TaskPlan(find_kind("tags"), (names[0].name,), (name,), "long", group, time, split) for name in targets]


def _has_measurements(columns: Sequence[Column], source: Source, taken: Sequence[str | None]) -> bool:
    """Return whether a column of numbers does more than increase within each series, which column taken[0] names."""
    group = str(taken[0])
    numbers = [c.name for c in columns if c.is_numeric and c.role not in ("id", "constant") and c.name not in taken]
    if not numbers:
        return False
    rows = source.columns(group, *numbers)
    falls = rows.select((pl.col(name).diff().over(group) < 0).any().alias(name) for name in numbers)
    return any(falls.row(0))


def _varies(source: Source, group: str, name: str) -> bool:
    """Return whether some series has several values of a column."""
    pairs = source.columns(group, name).unique()
    return len(pairs) > pairs[group].n_unique()
