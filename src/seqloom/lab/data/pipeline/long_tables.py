"""Find the series of a long table, in which every row is a step: the column that identifies them, and their target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.columns import is_id_name
from seqloom.lab.data.pipeline.order import have_order
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import TARGETS, Kind, find_kind

DEFAULTS = Reading()
FEWEST_STEPS = 3  # steps per series, on average
FEWEST_PIECES = 10  # pieces of a table that is one series
NAMING_ROLES = ("id", "label", "category", "text", "number")  # roles of a column that may name series


def list_long_choices(
    columns: Sequence[Column], source: Source, options: Reading, time: str | None, split: str | None
) -> list[TaskPlan]:
    """List plans for series with one label or number each, which is the same in all rows of a series.

    Without options, a label has to be the only constant one. A table with dates is left to forecasts, unless the name
    of its label says that it is a target.
    """
    if not options.form.reads_groups:
        return []
    numbers = [c.name for c in columns if c.is_numeric and c.role != "constant" and c.name != time]
    if options.input and not set(options.input) <= set(numbers):
        return []
    if options.form.target == "tags":
        return _list_tag_choices(columns, source, options, time, split, numbers)
    plans = []
    for kind, group, target in list_series(columns, source, options, time):
        names = options.input or tuple(n for n in numbers if n not in (group, target))
        if names:
            plans.append(TaskPlan(kind, names, (target,), "long", group, time, split))
    return plans


def list_series(
    columns: Sequence[Column], source: Source, options: Reading, time: str | None
) -> Iterator[tuple[Kind, str, str]]:
    """List what may be predicted of whole series: the kind of task, the column that names the series, the target."""
    for target in _list_targets(columns, options, time):
        group = find_group(columns, source, options, time, target.name)
        if group is not None:
            yield options.kind or find_kind("class" if target.role != "number" else "numbers"), group, target.name


def _list_tag_choices(
    columns: Sequence[Column],
    source: Source,
    options: Reading,
    time: str | None,
    split: str | None,
    numbers: Sequence[str],
) -> list[TaskPlan]:
    """List plans that tag every row of a long table; without a column that names series, the table is one series."""
    targets = [c.name for c in columns if c.role in ("label", "category") and c.name not in (*options.input, time)]
    plans = []
    for target in options.target or targets:
        group = options.group or find_group(columns, source, options, time, None, but=target)
        names = options.input or tuple(n for n in numbers if n not in (group, target))
        if names and target != group:
            plans.append(TaskPlan(find_kind("tags"), names, (target,), "long", group, time, split))
    return plans


def _list_targets(columns: Sequence[Column], options: Reading, time: str | None) -> list[Column]:
    """List the columns that may be the target of a whole series."""
    if options.target:
        return [c for c in columns if options.target == (c.name,) and c.role in ("label", "number", "category", "text")]
    labels = [c for c in columns if c.role == "label" and c.name not in (*options.input, options.group)]
    is_dated = any(c.name == time and c.is_string for c in columns)
    if is_dated and options.kind is None:
        labels = [c for c in labels if c.name.lower() in TARGETS]
    return labels


def find_group(
    columns: Sequence[Column],
    source: Source,
    options: Reading,
    time: str | None,
    target: str | None,
    but: str | None = None,
) -> str | None:
    """Return the column that identifies the series: the given one, otherwise the likeliest by name and content.

    With a `target`, each series has one value of it, and is a run of consecutive rows or has no time stamp twice.
    Without one, only a column with the name of an id is found. The column `but` is not considered.
    """
    taken = (*options.input, *options.target, time, options.split, target, but)
    names = [
        c for c in columns if c.role in NAMING_ROLES and c.name not in taken and (c.is_whole or c.role != "number")
    ]
    names = [c for c in names if 1 < c.distinct * FEWEST_STEPS <= source.rows]
    if options.group:
        names = [c for c in columns if c.name == options.group]
    numbers = [c.name for c in columns if c.role == "number"]
    ordered = sorted(names, key=lambda c: (not is_id_name(c.name), c.role != "id", not c.is_string))
    for column in ordered:
        wanted = [n for n in (column.name, target, time) if n]
        rows = source.columns(*dict.fromkeys(wanted))
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


def mention_other_series(
    plan: TaskPlan, columns: Sequence[Column], source: Source, options: Reading, notes: Notes
) -> None:
    """Note which series were found and, if a forecast was chosen, which label of whole series could be predicted."""
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
        is_event = any(c.name in plan.input and c.is_string for c in columns)
        series = f"one sequence of {plan.input[0]!r}" if is_event else "one series"
        notes.say(f"each {plan.group!r} is {series}; choose another column with group=...")
    elif plan.form.target == "series" and options.kind is None and not options.target:
        asked = options.model_copy(update={"kind": find_kind("class")})
        free = [replace(c) for c in columns if c.name != plan.time]
        for other in list_long_choices(free, source, asked, plan.time, plan.split)[:1]:
            label = other.target[0]
            notes.say(f"each {other.group!r} has one {label!r}; to predict that, give target={label} kind={asked.kind}")
