"""Choose the input, the target and the kind of task from the columns of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from seqloom.core.errors import ChoiceError, UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.names import Kind
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Column, Notes

Layout = Literal["rows", "wide", "long", "table", "stream"]
TARGETS = ("label", "labels", "target", "class", "y", "output", "sentiment", "category", "tag", "tags")
INPUTS = ("text", "tokens", "series", "audio")
SERIES_NAMES = ("label", "category", "id", "text")  # roles of a column that may name series
KINDS: dict[tuple[str, str], Kind] = {
    **{(i, "label"): "classify" for i in INPUTS},
    **{(i, "labels"): "multilabel" for i in INPUTS},
    **{(i, "number"): "regress" for i in INPUTS},
    ("tokens", "tags"): "tag",
    ("series", "tags"): "tag",
    ("text", "text"): "translate",
    ("tokens", "tokens"): "translate",
    **{(i, o): "transcribe" for i in ("audio", "series") for o in ("text", "tokens")},
}
RANK = {
    "tag": 0,
    "classify": 0,
    "translate": 0,
    "transcribe": 0,
    "regress": 0,
    "multilabel": 1,
    "forecast": 1,
    "generate": 2,
}
LABEL_SETS = ("tokens", "tags", "label", "category")  # roles of a column that may hold several labels in each row
NAMED_LABEL_SETS = ("series", "text", "id")  # these only if the target is named
MAX_LABELS = 200  # a list of names with more distinct ones is a target only if it is named
MOST_LISTED = 6  # inputs that a message lists
MOST_REPEATS = 0.01  # share of the rows of a table that may repeat a time stamp: the hour when summer time ends
DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
MIN_WIDE = 8  # fewest columns of numbers that make a row a series


@dataclass(frozen=True)
class TaskPlan:
    """The kind of task and the use of every column.

    Layouts: "rows" (a row is an example), "wide" (a row is an example, its columns of numbers are the steps), "long"
    (a group of rows is an example), "table" (rows are the steps of one series), "stream" (one long text).
    """

    kind: Kind
    input: tuple[str, ...]
    target: tuple[str, ...]
    layout: Layout = "rows"
    group: str | None = None
    time: str | None = None
    split: str | None = None
    known: tuple[str, ...] = ()  # inputs of a forecast whose future is known
    attributes: tuple[str, ...] = ()  # numbers and names of a row that are read beside its sequence

    @property
    def uses(self) -> dict[str, str]:
        """The use of each column by name: input, target, known, group, time or split."""
        uses = dict.fromkeys(self.target, "target")
        uses |= {name: "input" if name not in uses else "input, target" for name in self.input}
        uses |= dict.fromkeys(self.known, "input, known") | dict.fromkeys(self.attributes, "input")
        return uses | {v: k for k in ("group", "time", "split") if (v := getattr(self, k))}


def resolve_names(options: Reading, columns: Sequence[Column], notes: Notes) -> Reading:
    """Replace names of columns in the options by the dotted names that end in them, if there is one for each."""
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
    from seqloom.lab.data.pipeline.event_logs import list_event_choices

    events = list_event_choices(columns, source, options)
    return events or _list_choices([_treat_as_asked(c, columns, options) for c in columns], source, options)


def choose_plan(columns: Sequence[Column], source: Source, options: Reading, notes: Notes) -> TaskPlan:
    """Choose the only or likeliest plan that the columns and options allow.

    Raises:
        UserError: If an option names no column, or if no plan or several plans are possible.
    """
    from seqloom.lab.data.pipeline.refusals import explain_refusal

    by_name = {c.name: c for c in columns}
    place = source.parts[0].label
    named = (*options.input, *options.target, *options.known, options.group, options.time, options.split)
    for name in [name for name in named if name is not None and name not in by_name]:
        hint = suggest(name, by_name)
        raise UserError(f"{place}: no column {name!r}; {hint}{' ' if hint else ''}the columns are {', '.join(by_name)}")
    if options.group is not None and options.group == options.time:
        raise UserError(f"{place}: {options.group!r} cannot be both the group and the time; leave one of them out")
    if source.stream and options.kind in (None, "generate"):
        return TaskPlan("generate", ("text",), ("text",), "stream")
    _check_date_parts(columns, options, place)
    choices = list_choices(columns, source, options)
    if source.usual and not options.target:
        usual = [c for c in choices if c.input == source.usual[:1] and c.target == source.usual[1:]]
        if usual and len(choices) > 1:
            notes.say(f"the target is {source.usual[1]!r}, as is usual for this format; choose another with target=...")
        choices = usual or choices
    best = _select_best(choices, options)
    if not best:
        raise UserError(f"{place}: {explain_refusal(columns, source, options)}")
    if len(best) > 1:
        listed = "; ".join(_format_choice(c, by_name) for c in best[:10])
        raise ChoiceError(
            f"{place}: more than one task is possible, choose one: {listed}", [list_flags(c) for c in best[:10]]
        )
    plan = best[0]
    inner = getattr(source.frame().collect_schema()[plan.target[0]], "inner", None)
    if plan.kind == "tag" and isinstance(inner, pl.List):
        plan = replace(plan, kind="multilabel")  # several tags for each step
    blind = [name for name in plan.target if name not in plan.input] if plan.kind == "forecast" else []
    if blind:
        inputs = ",".join((*plan.input, *blind))
        raise UserError(f"{place}: a forecast of {blind[0]!r} needs its past; add it with input={inputs}")
    if options.known and plan.kind != "forecast":
        raise UserError(
            f"{place}: known={','.join(options.known)} is for forecasts, and the task is {plan.kind}; leave it out"
        )
    if wrong := [name for name in plan.known if name in plan.target]:
        raise UserError(
            f"{place}: {wrong[0]!r} is to be forecast, so its future is not known; name others with known=..."
        )
    constant = [c for c in columns if c.role == "constant" and c.name.lower() in TARGETS]
    if plan.kind == "generate" and constant and options.kind is None:
        raise UserError(
            f"{place}: {constant[0].name!r} is {constant[0].example!r} in every row; classifying needs at least two "
            "classes (kind generate models the texts alone)"
        )
    return plan


def _check_date_parts(columns: Sequence[Column], options: Reading, place: str) -> None:
    """Refuse a table whose dates are spread over columns of years, months and days, unless its use is named."""
    parts = [c.name for c in columns if c.name.lower() in DATE_PARTS and c.role != "time"]
    is_spread = {"year", "month", "day"} <= {name.lower() for name in parts}
    if not is_spread or options.kind or options.input or options.time or any(c.role == "time" for c in columns):
        return
    raise UserError(
        f"{place}: {', '.join(map(repr, parts))} are parts of a date; write them as one column, such as 2026-12-31 "
        "23:00:00, or give kind=forecast to forecast the rows in the order of the file"
    )


def _treat_as_asked(column: Column, columns: Sequence[Column], options: Reading) -> Column:
    """Give ids the role that the options ask for.

    Names and ids are text if the column is the only input, or the only column. Numbers that count the rows are
    measurements if they are to be forecast.
    """
    if options.kind == "forecast" and column.role == "id" and not column.is_string and column.name in options.target:
        return replace(column, role="number", is_whole=True)
    is_forecast = options.kind == "forecast" or options.target == options.input
    is_input = (options.input == (column.name,) and not is_forecast) or len(columns) == 1
    return replace(column, role="text") if is_input and column.is_string else column


def _list_choices(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List every plan that the columns and the options allow."""
    from seqloom.lab.data.pipeline.long_tables import list_long_choices

    time = options.time or next((c.name for c in columns if c.role == "time" and c.name != options.group), None)
    times = next((c.name for c in columns if c.role == "times"), None)
    split = options.split or next((c.name for c in columns if c.role == "split"), None)
    free = [c for c in columns if c.name not in (options.group, options.split, options.time, split)]
    common: Any = {"group": options.group, "split": split}
    plans = []
    for one in [c for c in free if c.role in INPUTS and c.name in (options.input or (c.name,))]:
        stamps = times if one.role == "series" else options.time
        for other in [c for c in free if c.name != one.name and c.name in (options.target or (c.name,))]:
            for role in _list_target_roles(other, bool(options.target), options.kind):
                if (one.role, role) in KINDS:
                    target = options.target if role == "number" and options.target else (other.name,)
                    plans.append(TaskPlan(KINDS[one.role, role], (one.name,), target, "rows", time=stamps, **common))
        if one.role == "text" and options.target in ((), (one.name,)):
            plans.append(TaskPlan("generate", (one.name,), (one.name,), "rows", time=options.time, **common))
    if len(options.input) > 1 and options.kind != "forecast" and not set(options.target) & set(options.input):
        plans += _list_mixed_choices(free, source, options, common)
    long = [] if any(c.role in INPUTS for c in free) else list_long_choices(columns, source, options, time, split)
    plans += long or _list_number_choices(free, options, time, split)
    plans = list(dict.fromkeys(c for c in plans if options.kind in (None, c.kind)))
    plans = [c for c in plans if not options.target or set(c.target) == set(options.target)]
    wanted = set(options.input)
    return [c for c in plans if not wanted or {*c.input, *c.attributes} - set(c.known) == wanted - set(c.known)]


def _list_mixed_choices(
    columns: Sequence[Column], source: Source, options: Reading, common: dict[str, Any]
) -> list[TaskPlan]:
    """List plans that read several columns of different kinds."""
    from seqloom.lab.data.pipeline.mixed_inputs import list_mixed_choices

    first = next((c.role for c in columns if c.name in options.input and c.role in INPUTS), "text")
    kinds: dict[str, Kind] = {}
    for other in [c for c in columns if c.name not in options.input and c.name in (options.target or (c.name,))]:
        roles = _list_target_roles(other, bool(options.target), options.kind)
        for kind in [KINDS[first, role] for role in roles if (first, role) in KINDS]:
            if options.kind in (None, kind):
                kinds[other.name] = kind
    named = [c for c in columns if c.name in options.input]
    return list_mixed_choices(named, options, source.parts[0].label, kinds, common) if len(named) > 1 else []


def _list_target_roles(column: Column, is_named: bool, kind: str | None) -> list[str]:
    """List the roles a target may play; a number or a category is a label only on request."""
    roles = [column.role]
    if column.is_numeric and column.role != "number" and kind == "regress":
        roles = ["number"]
    if is_named and column.role in ("category", "id", "number", "text", "constant", "time") and kind == "classify":
        roles.append("label")
    if is_named and column.role in ("category", "id", "constant"):
        roles.append("label")
    if column.role in ("label", "category") and kind == "transcribe":
        roles = ["text"]
    if is_named and column.role in ("label", "category", "id", "constant") and kind in ("translate", "transcribe"):
        roles = ["text"]
    if is_named and column.role in ("tokens", "series") and kind == "tag":
        roles = ["tags"]
    if kind == "multilabel" and (column.role in LABEL_SETS or (is_named and column.role in NAMED_LABEL_SETS)):
        roles = ["labels"]
    elif kind is None and column.role == "tokens" and (is_named or column.distinct <= MAX_LABELS):
        roles.append("labels")
    return roles


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
    if measured and not has_sequences and (time or options.kind == "forecast" or only_numbers):
        names = options.input or tuple(c.name for c in numbers if c.role != "constant")
        if options.group and options.kind != "forecast" and any(c.role == "label" for c in labels):
            names = tuple(n for n in names if n not in [c.name for c in labels])
            return [TaskPlan("classify", names, (c.name,), "long", options.group, time, split) for c in labels]
        if options.target and not options.input:
            names += tuple(c.name for c in columns if c.role == "label" and not c.is_numeric and c.name not in names)
        target = options.target or tuple(n for n in names if n not in options.known)
        names = tuple(dict.fromkeys([*names, *options.known]))
        if any(c.name in target and c.is_string and not c.is_numeric for c in columns):
            return []  # a forecast predicts numbers
        plans.append(TaskPlan("forecast", names, target, "table", options.group, time, known=options.known))
    for label in [] if has_sequences or time else labels:
        names = options.input or tuple(c.name for c in numbers if c.name != label.name)
        if len(names) >= MIN_WIDE or options.input:
            plans.append(TaskPlan("classify", names, (label.name,), "wide", options.group, None, split))
    return plans


def _select_best(choices: list[TaskPlan], options: Reading) -> list[TaskPlan]:
    """Return the likeliest plans: by the name of the target, then by the kind."""
    named = [c for c in choices if c.target[0].lower() in TARGETS and c.kind != "generate"]
    pool = choices if options.target else named or choices
    lowest = min((RANK[c.kind] for c in pool), default=0)
    return [c for c in pool if RANK[c.kind] == lowest]


def list_flags(choice: TaskPlan) -> dict[str, str]:
    """Return the options that select a plan; long lists of inputs are left out, since they are inferred."""
    options = {"input": ",".join(choice.input), "target": ",".join(choice.target), "kind": choice.kind}
    return options if len(choice.input) <= MOST_LISTED else {k: v for k, v in options.items() if k != "input"}


def _format_choice(choice: TaskPlan, columns: dict[str, Column]) -> str:
    target = columns[choice.target[0]]
    distinct = f" ({target.distinct - (target.missing > 0)} distinct)" if target.role in ("label", "tags") else ""
    return " ".join(f"{name}={value}" for name, value in list_flags(choice).items()) + distinct


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
    if repeated > MOST_REPEATS * source.rows:  # fewer ones are averaged
        first = int(rows.select(pl.col(stamps.name).is_duplicated()).to_series().arg_max() or 0)
        notes.warn(
            f"rows that repeat a time stamp of {stamps.name!r}: {repeated} of {source.rows} (first: "
            f"{source.place(first)}); they are read as steps in file order"
        )
    return plan
