"""Choose the input, the target and the kind of task from the columns of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.columns import is_id_name
from seqloom.lab.data.pipeline.long_tables import list_event_choices, list_long_choices
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.task_plan import MOST_REPEATS, TableRequest, TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import FORMS, INPUTS, Kind, find_kind

SERIES_NAMES = ("label", "category", "id", "text")  # roles of a column that may name series
KINDS: dict[tuple[str, str], Kind] = {
    roles: kind for kind, form in FORMS.items() for roles in form.roles if form.inputs == 1
}
MOST_LISTED = 6  # inputs that a message lists
MIN_WIDE = 8  # minimum number of numeric columns for a row to be a series
SEQUENCES = ("text", "tokens", "series", "audio")
ATTRIBUTES = ("number", "label", "category", "constant")


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


def list_choices(request: TableRequest) -> list[TaskPlan]:
    """List every plan that the columns and the options allow."""
    treated = [_treat_as_asked(column, request) for column in request.columns]
    return list_event_choices(request) or _list_choices(replace(request, columns=treated))


def _treat_as_asked(column: Column, request: TableRequest) -> Column:
    """Give ids the role that the options ask for.

    Names and ids are text if the column is the only input, or the only column. Numbers that count the rows are
    measurements if they are to be forecast.
    """
    options = request.options
    is_forecast = options.form.target == "series"
    if is_forecast and column.role == "id" and not column.is_string and column.name in options.target:
        return replace(column, role="number", is_whole=True)
    is_forecast = is_forecast or options.target == options.input
    is_input = (options.input == (column.name,) and not is_forecast) or len(request.columns) == 1
    return replace(column, role="text") if is_input and column.is_string else column


def _list_choices(request: TableRequest) -> list[TaskPlan]:
    """List every plan that the columns and the options allow."""
    columns, options, split = request.columns, request.options, request.split
    times = next((c.name for c in columns if c.role == "times"), None)
    free = [c for c in columns if c.name not in (options.group, options.split, options.time, split)]
    common: Any = {"group": options.group, "split": split}
    plans = []
    for one in [c for c in free if c.role in INPUTS and c.name in (options.input or (c.name,))]:
        stamps = times if one.role == "series" else options.time
        for other, role in _list_targets(free, options, (one.name,)):
            if (one.role, role) in KINDS:
                target = options.target if role == "number" and options.target else (other,)
                plans.append(TaskPlan(KINDS[one.role, role], (one.name,), target, "rows", time=stamps, **common))
        if one.role == "text" and options.target in ((), (one.name,)):
            plans.append(TaskPlan(find_kind("next"), (one.name,), (one.name,), "rows", time=options.time, **common))
    if options.form.inputs > 1:
        plans += _list_compared_choices(free, options, common)
    elif len(options.input) > 1 and options.form.target != "series" and not set(options.target) & set(options.input):
        plans += _list_mixed_choices(free, options, request.place, common)
    long = [] if any(c.role in INPUTS for c in free) else list_long_choices(request)
    plans += long or _list_number_choices(replace(request, columns=free), request.time, split)
    plans = list(dict.fromkeys(c for c in plans if options.kind in (None, c.kind)))
    plans = [c for c in plans if not options.target or set(c.target) == set(options.target)]
    wanted = set(options.input)
    return [c for c in plans if not wanted or {*c.input, *c.attributes} - set(c.known) == wanted - set(c.known)]


def _list_targets(columns: Sequence[Column], options: Reading, inputs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """List the columns that may be the target beside some inputs, each with a role that it may have."""
    for column in columns:
        if column.name not in inputs and column.name in (options.target or (column.name,)):
            for role in options.form.list_target_roles(column, bool(options.target)):
                yield column.name, role


def _list_compared_choices(columns: Sequence[Column], options: Reading, common: dict[str, Any]) -> list[TaskPlan]:
    """List plans that compare several texts of a row; a column that is named as an input is read as text."""
    form, kind = options.form, options.kind
    named = [name for name in options.input if any(c.name == name and c.is_string for c in columns)]
    texts = named or [c.name for c in columns if c.role == "text" and c.name not in options.target]
    return [
        TaskPlan(kind, inputs, (target,), "rows", **common)
        for target, role in _list_targets(columns, options, options.input)
        for inputs in combinations(texts, form.inputs)
        if kind is not None and target not in inputs and ("text", role) in form.roles
    ]


def _list_mixed_choices(
    columns: Sequence[Column], options: Reading, place: str, common: dict[str, Any]
) -> list[TaskPlan]:
    """List plans that read several columns of different kinds: texts, or one sequence, with numbers and names."""
    named = [c for c in columns if c.name in options.input]
    first = next((c.role for c in named if c.role in INPUTS), "text")
    kinds: dict[str, Kind] = {}
    for target, role in _list_targets(columns, options, options.input):
        kind = KINDS.get((first, role))
        if kind is not None and options.kind in (None, kind):
            kinds[target] = kind
    sequences, attributes = _split_inputs(named, options, place) if len(named) > 1 else ((), ())
    if not sequences:
        return []
    is_joined = bool(attributes) or (len(sequences) > 1 and any(c.role != "series" for c in named))
    odd = [kind for kind in kinds.values() if not FORMS[kind].is_per_row and is_joined]
    if odd and len(odd) == len(kinds):
        raise UserError(
            f"{place}: several inputs of different kinds are read to classify or regress, not to {odd[0]}; "
            f"give one of them: input={sequences[0]}"
        )
    return [
        TaskPlan(kind, sequences, (target,), "rows", attributes=attributes, **common)
        for target, kind in kinds.items()
        if kind not in odd
    ]


def _list_number_choices(request: TableRequest, time: str | None, split: str | None) -> list[TaskPlan]:
    """List plans for tables of numbers: a forecast, one series per row, or one series per group."""
    columns, options = request.columns, request.options
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


def separate_series(plan: TaskPlan, request: TableRequest, notes: Notes) -> TaskPlan:
    """Add the column that names the series to a plan of layout "table" if time stamps repeat and no group is given."""
    columns, source, options = request.columns, request.source, request.options
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
    repeated = source.rows - stamps.distinct
    if names and not rows.is_duplicated().any():
        raise UserError(
            f"{request.place}: time stamps of {stamps.name!r} repeat (rows: {repeated}), and no single column "
            f"separates the series; join {', '.join(names)} into one column and name it with group=..."
        )
    if repeated > MOST_REPEATS * source.rows:  # fewer repeated time stamps are averaged
        first = int(rows.select(pl.col(stamps.name).is_duplicated()).to_series().arg_max() or 0)
        notes.warn(
            f"rows that repeat a time stamp of {stamps.name!r}: {repeated} of {source.rows} (first: "
            f"{source.place(first)}); they are read as steps in file order"
        )
    return plan


def _split_inputs(columns: Sequence[Column], options: Reading, place: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide the columns that are named in the options into sequences and attributes of a row.

    If no input is a sequence, a column with too many names for classes is read as text.

    Returns:
        The sequences and the attributes; both empty without a sequence. Numbers alone are steps, or features of steps.

    Raises:
        UserError: If the inputs cannot be joined; with the nearest choice that works.
    """
    inputs = [next(c for c in columns if c.name == name) for name in options.input]
    sequences = [c for c in inputs if c.role in SEQUENCES]
    if not sequences and all(c.is_numeric for c in inputs):
        return (), ()
    if not sequences:
        names = [c for c in inputs if c.role == "category"]
        sequences = sorted(names, key=lambda c: -c.distinct)[:1]
    if not sequences:
        return (), ()
    rest = [c for c in inputs if c not in sequences]

    def counts(column: Column) -> bool:  # an id only because its numbers are consecutive
        return column.role == "id" and not column.is_string and not is_id_name(column.name)

    odd = [c for c in rest if c.role not in ATTRIBUTES and not counts(c)]
    if odd:
        kept = ",".join(c.name for c in inputs if c not in odd)
        raise UserError(
            f"{place}: {odd[0].name!r} ({odd[0].role}) cannot be an input beside others; leave it out: input={kept}"
        )
    roles = {c.role for c in sequences}
    if len(sequences) > 1 and roles != {"text"} and not (roles == {"series"} and not rest):
        listed = ", ".join(f"{c.name} ({c.role})" for c in sequences)
        raise UserError(
            f"{place}: {listed} cannot be read by one model; several inputs may be texts, or one sequence with numbers "
            f"and names: input={','.join(c.name for c in (sequences[0], *rest))}"
        )
    return tuple(c.name for c in sequences), tuple(c.name for c in rest)
