"""Choose the input, the target and the kind of task from the columns of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.event_logs import list_event_choices
from seqloom.lab.data.pipeline.long_tables import list_long_choices
from seqloom.lab.data.pipeline.mixed_inputs import list_mixed_choices
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import MOST_REPEATS, TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import FORMS, INPUTS, Kind, find_kind

SERIES_NAMES = ("label", "category", "id", "text")  # roles of a column that may name series
KINDS: dict[tuple[str, str], Kind] = {
    roles: kind for kind, form in FORMS.items() for roles in form.roles if form.inputs == 1
}
MOST_LISTED = 6  # inputs that a message lists
MIN_WIDE = 8  # minimum number of numeric columns for a row to be a series


def resolve_names(options: Reading, columns: Sequence[Column], notes: Notes) -> Reading:
    """Replace names of columns in the options with the dotted names that end in them, if there is one for each."""
    known = [c.name for c in columns]

    def resolve(name: str) -> str:
        longer = [other for other in known if other.endswith(f".{name}")]
        if name in known or len(longer) != 1:
            return name
        notes.say(f"{name!r} is the column {longer[0]!r}")
        return longer[0]

    single = {k: resolve(v) for k in ("group", "time", "split") if (v := getattr(options, k))}
    sides = {k: tuple(resolve(name) for name in getattr(options, k)) for k in ("input", "target")}
    return options.model_copy(update=single | sides)


def list_choices(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List every plan that the columns and the options allow."""
    events = list_event_choices(columns, source, options)
    return events or _list_choices([_treat_as_asked(c, columns, options) for c in columns], source, options)


def _treat_as_asked(column: Column, columns: Sequence[Column], options: Reading) -> Column:
    """Give ids the role that the options ask for.

    Names and ids are text if the column is the only input, or the only column. Numbers that count the rows are
    measurements if they are to be forecast.
    """
    is_forecast = options.form.target == "series"
    if is_forecast and column.role == "id" and not column.is_string and column.name in options.target:
        return replace(column, role="number", is_whole=True)
    is_forecast = is_forecast or options.target == options.input
    is_input = (options.input == (column.name,) and not is_forecast) or len(columns) == 1
    return replace(column, role="text") if is_input and column.is_string else column


def _list_choices(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List every plan that the columns and the options allow."""
    time = options.time or next((c.name for c in columns if c.role == "time" and c.name != options.group), None)
    times = next((c.name for c in columns if c.role == "times"), None)
    split = options.split or next((c.name for c in columns if c.role == "split"), None)
    free = [c for c in columns if c.name not in (options.group, options.split, options.time, split)]
    common: Any = {"group": options.group, "split": split}
    plans = []
    for one in [c for c in free if c.role in INPUTS and c.name in (options.input or (c.name,))]:
        stamps = times if one.role == "series" else options.time
        for other in [c for c in free if c.name != one.name and c.name in (options.target or (c.name,))]:
            for role in options.form.list_target_roles(other, bool(options.target)):
                if (one.role, role) in KINDS:
                    target = options.target if role == "number" and options.target else (other.name,)
                    plans.append(TaskPlan(KINDS[one.role, role], (one.name,), target, "rows", time=stamps, **common))
        if one.role == "text" and options.target in ((), (one.name,)):
            plans.append(TaskPlan(find_kind("next"), (one.name,), (one.name,), "rows", time=options.time, **common))
    if options.form.inputs > 1:
        plans += _list_compared_choices(free, options, common)
    elif len(options.input) > 1 and options.form.target != "series" and not set(options.target) & set(options.input):
        plans += _list_mixed_choices(free, source, options, common)
    long = [] if any(c.role in INPUTS for c in free) else list_long_choices(columns, source, options, time, split)
    plans += long or _list_number_choices(free, options, time, split)
    plans = list(dict.fromkeys(c for c in plans if options.kind in (None, c.kind)))
    plans = [c for c in plans if not options.target or set(c.target) == set(options.target)]
    wanted = set(options.input)
    return [c for c in plans if not wanted or {*c.input, *c.attributes} - set(c.known) == wanted - set(c.known)]


def _list_compared_choices(columns: Sequence[Column], options: Reading, common: dict[str, Any]) -> list[TaskPlan]:
    """List plans that compare several texts of a row; a column that is named as an input is read as text."""
    form, kind = options.form, options.kind
    strings = [c.name for c in columns if c.is_string]
    named = [name for name in options.input if name in strings]
    targets = [c for c in columns if c.name not in options.input and c.name in (options.target or (c.name,))]
    texts = named or [c.name for c in columns if c.role == "text" and c.name not in options.target]
    return [
        TaskPlan(kind, inputs, (target.name,), "rows", **common)
        for target in targets
        for inputs in combinations(texts, form.inputs)
        for role in form.list_target_roles(target, bool(options.target))
        if kind is not None and target.name not in inputs and ("text", role) in form.roles
    ]


def _list_mixed_choices(
    columns: Sequence[Column], source: Source, options: Reading, common: dict[str, Any]
) -> list[TaskPlan]:
    """List plans that read several columns of different kinds."""
    first = next((c.role for c in columns if c.name in options.input and c.role in INPUTS), "text")
    kinds: dict[str, Kind] = {}
    for other in [c for c in columns if c.name not in options.input and c.name in (options.target or (c.name,))]:
        roles = options.form.list_target_roles(other, bool(options.target))
        for kind in [KINDS[first, role] for role in roles if (first, role) in KINDS]:
            if options.kind in (None, kind):
                kinds[other.name] = kind
    named = [c for c in columns if c.name in options.input]
    return list_mixed_choices(named, options, source.parts[0].label, kinds, common) if len(named) > 1 else []


def _list_number_choices(
    columns: Sequence[Column], options: Reading, time: str | None, split: str | None
) -> list[TaskPlan]:
    """List plans for tables of numbers: a forecast, one series per row, or one series per group."""
    numbers = [c for c in columns if c.is_numeric and c.name != time]
    labels = [c for c in columns if c.role == "label" and c.name in (options.target or (c.name,))]
    plans = []
    has_sequences = any(c.role in INPUTS for c in columns)
    measured = [c.name for c in numbers if c.role == "number" or c.name in (*options.input, *options.target)]
    only_numbers = all(c.role in ("number", "constant") for c in columns)
    if measured and not has_sequences and (time or options.form.target == "series" or only_numbers):
        names = options.input or tuple(c.name for c in numbers if c.role != "constant")
        if options.group and options.form.target != "series" and any(c.role == "label" for c in labels):
            names = tuple(n for n in names if n not in [c.name for c in labels])
            return [TaskPlan(find_kind("class"), names, (c.name,), "long", options.group, time, split) for c in labels]
        if options.target and not options.input:
            names += tuple(c.name for c in columns if c.role == "label" and not c.is_numeric and c.name not in names)
        target = options.target or tuple(n for n in names if n not in options.known)
        names = tuple(dict.fromkeys([*names, *options.known]))
        if any(c.name in target and c.is_string and not c.is_numeric for c in columns):
            return []  # a forecast predicts numbers
        plans.append(TaskPlan(find_kind("series"), names, target, "table", options.group, time, known=options.known))
    for label in [] if has_sequences or time else labels:
        names = options.input or tuple(c.name for c in numbers if c.name != label.name)
        if len(names) >= MIN_WIDE or options.input:
            plans.append(TaskPlan(find_kind("class"), names, (label.name,), "wide", options.group, None, split))
    return plans


def list_flags(choice: TaskPlan) -> dict[str, str]:
    """Return the options that select a plan; long lists of inputs are left out, since they are inferred."""
    options = {"input": ",".join(choice.input), "target": ",".join(choice.target), "kind": choice.kind}
    return options if len(choice.input) <= MOST_LISTED else {k: v for k, v in options.items() if k != "input"}


def separate_series(
    source: Source, plan: TaskPlan, columns: Sequence[Column], options: Reading, notes: Notes
) -> TaskPlan:
    """Add the column that names the series to a plan of layout "table" if time stamps repeat and no group is given."""
    stamps = next((c for c in columns if c.name == plan.time), None)
    if plan.group or stamps is None or stamps.distinct >= source.rows:
        return plan
    named = (*options.input, *options.target, stamps.name)
    names = [c.name for c in columns if c.role in SERIES_NAMES and c.name not in named]
    rows = source.columns(stamps.name, *names)
    for name in names:
        if not rows.select(stamps.name, name).is_duplicated().any():
            notes.say(f"{stamps.name!r} repeats, so each {name!r} is a series; choose another column with group=...")
            sides = [tuple(n for n in side if n != name) for side in (plan.input, plan.target)]
            return replace(plan, group=name, input=sides[0], target=sides[1])
    place, repeated = source.parts[0].label, source.rows - stamps.distinct
    if names and not rows.is_duplicated().any():
        raise UserError(
            f"{place}: time stamps of {stamps.name!r} repeat (rows: {repeated}), and no single column separates the "
            f"series; join {', '.join(names)} into one column and name it with group=..."
        )
    if repeated > MOST_REPEATS * source.rows:  # fewer repeated time stamps are averaged
        first = int(rows.select(pl.col(stamps.name).is_duplicated()).to_series().arg_max() or 0)
        notes.warn(
            f"rows that repeat a time stamp of {stamps.name!r}: {repeated} of {source.rows} (first: "
            f"{source.place(first)}); they are read as steps in file order"
        )
    return plan
