"""Choose the only or likeliest plan that the columns of a file and the options allow, or explain why there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from seqloom.core.errors import ChoiceError, UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.pipeline.columns import DAY_FIRST, STAMP
from seqloom.lab.data.pipeline.long_tables import find_events_without_target, have_order
from seqloom.lab.data.pipeline.plan import list_choices, list_flags
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.task_plan import TableRequest, TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import FORMS, TARGETS, describe_kind, find_kind

DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")
MOST_COLUMNS = 12  # columns that a message lists


def choose_plan(request: TableRequest, notes: Notes) -> TaskPlan:
    """Choose the only or likeliest plan that the columns and options allow.

    Raises:
        UserError: If an option names no column, or if no plan or several plans are possible.
    """
    columns, source, options, place = request.columns, request.source, request.options, request.place
    by_name = {c.name: c for c in columns}
    named = (*options.input, *options.target, *options.known, options.group, options.time, options.split)
    for name in [name for name in named if name is not None and name not in by_name]:
        hint = suggest(name, by_name)
        raise UserError(f"{place}: no column {name!r}; {hint}{' ' if hint else ''}the columns are {', '.join(by_name)}")
    if options.group is not None and options.group == options.time:
        raise UserError(f"{place}: {options.group!r} cannot be both the group and the time; leave one of them out")
    if source.stream and options.form.target in (None, "next"):
        return TaskPlan(find_kind("next"), ("text",), ("text",), "stream")
    _check_date_parts(request)
    choices = list_choices(request)
    if source.usual and not options.target:
        usual = [c for c in choices if c.input == source.usual[:1] and c.target == source.usual[1:]]
        if usual and len(choices) > 1:
            notes.say(f"the target is {source.usual[1]!r}, as is usual for this format; choose another with target=...")
        choices = usual or choices
    best = _select_best(choices, options)
    if not best:
        raise UserError(f"{place}: {explain_refusal(request)}")
    if len(best) > 1:
        several = [kind for kind, form in FORMS.items() if form.inputs > 1 and options.kind is None]
        best += [plan for kind in several for plan in list_choices(request.ask(kind=kind))]  # chosen on request only
        listed = "; ".join(_format_choice(c, by_name) for c in best[:10])
        raise ChoiceError(
            f"{place}: more than one task is possible, choose one: {listed}", [list_flags(c) for c in best[:10]]
        )
    plan = best[0]
    inner = getattr(source.frame().collect_schema()[plan.target[0]], "inner", None)
    if plan.form.target == "tags" and isinstance(inner, pl.List):
        plan = replace(plan, kind=find_kind("labels"))  # several tags for each step
    blind = [name for name in plan.target if name not in plan.input] if plan.form.target == "series" else []
    if blind:
        inputs = ",".join((*plan.input, *blind))
        raise UserError(f"{place}: a forecast of {blind[0]!r} needs its past; add it with input={inputs}")
    if options.known and plan.form.target != "series":
        raise UserError(
            f"{place}: known={','.join(options.known)} is for forecasts, and the task is {plan.kind}; leave it out"
        )
    if wrong := [name for name in plan.known if name in plan.target]:
        raise UserError(
            f"{place}: {wrong[0]!r} is to be forecast, so its future is not known; name others with known=..."
        )
    constant = [c for c in columns if c.role == "constant" and c.name.lower() in TARGETS]
    if plan.form.target == "next" and constant and options.kind is None:
        raise UserError(
            f"{place}: {constant[0].name!r} is {constant[0].example!r} in every row; classifying needs at least two "
            f"classes (kind {plan.kind} models the texts alone)"
        )
    return plan


def _check_date_parts(request: TableRequest) -> None:
    """Raise an error for a table with dates spread over columns of years, months and days, unless its use is named."""
    columns, options = request.columns, request.options
    parts = [c.name for c in columns if c.name.lower() in DATE_PARTS and c.role != "time"]
    is_spread = {"year", "month", "day"} <= {name.lower() for name in parts}
    if not is_spread or options.kind or options.input or options.time or any(c.role == "time" for c in columns):
        return
    raise UserError(
        f"{request.place}: {', '.join(map(repr, parts))} are parts of a date; write them as one column, such as "
        f"2026-12-31 23:00:00, or give kind={find_kind('series')} to forecast the rows in the order of the file"
    )


def _select_best(choices: list[TaskPlan], options: Reading) -> list[TaskPlan]:
    """Return the likeliest plans: by the name of the target, then by the kind."""
    named = [c for c in choices if c.target[0].lower() in TARGETS and c.form.target != "next"]
    pool = choices if options.target else named or choices
    lowest = min((c.form.rank for c in pool), default=0)
    return [c for c in pool if c.form.rank == lowest]


def _format_choice(choice: TaskPlan, columns: dict[str, Column]) -> str:
    target = columns[choice.target[0]]
    distinct = f" ({target.distinct - (target.missing > 0)} distinct)" if target.role in ("label", "tags") else ""
    return " ".join(f"{name}={value}" for name, value in list_flags(choice).items()) + distinct


def explain_refusal(request: TableRequest) -> str:
    """Explain why the requested task, which no plan fits, cannot be learned, with the closest one that can."""
    columns, options = request.columns, request.options
    by_name = {c.name: c for c in columns}
    if unordered := _describe_unordered(request):
        return unordered
    if not (options.input or options.target or options.kind):
        listed = ", ".join(f"{c.name} ({c.role})" for c in columns[:MOST_COLUMNS])
        named = "choose input=..., target=... and kind=..."
        if advice := _advise_on_series(request) or _advise_on_events(request):
            return advice
        kinds = [kind for kind in FORMS if _list_plans(request.ask(kind=kind))]
        advice = f"what works is kind={kinds[0]}" if kinds else named
        if not kinds or any(_looks_like_date(c) for c in columns):
            advice = _advise_on_dates(columns) or _advise_on_counts(request) or advice
        return f"no task fits the columns {listed}; {advice}"
    problem = _find_problem([by_name[n] for n in options.input], [by_name[n] for n in options.target], options)
    nearest = _find_nearest(request)
    if nearest is None:
        return problem
    flags = " ".join(f"{name}={value}" for name, value in list_flags(nearest).items())
    return f"{problem}; what works is {flags}"


def _advise_on_series(request: TableRequest) -> str:
    """Return how to predict a number that each series of a long table has; "" if there is none."""
    for name in [c.name for c in request.columns if c.role == "number"]:
        plans = _list_plans(replace(request, options=Reading(target=(name,), kind=find_kind("numbers"))))
        if plans and plans[0].group:
            return f"each {plans[0].group!r} is a series with one {name!r}; to predict it, give target={name}"
    return ""


def _advise_on_events(request: TableRequest) -> str:
    """Return what a log of events without a target lacks, or how to label its events; "" for other tables."""
    events = find_events_without_target(request)
    if events is None:
        return ""
    group, name = events
    asked = request.ask(input=(name,), group=group, kind=find_kind("tags"))
    labels = [plan.target[0] for plan in _list_plans(asked)]
    if labels:
        targets = " or ".join(f"target={label}" for label in labels[:MOST_COLUMNS])
        return (
            f"each {group!r} is a sequence of {name!r}, but has no label or number of its own; to predict a label for "
            f"each {name!r}, give kind={asked.options.kind} and {targets}"
        )
    return (
        f"each {group!r} is a sequence of {name!r}, but has no label or number to predict; add one as a column, equal "
        f"in all rows of one {group!r} (if it is in another file, join the two first)"
    )


def _describe_unordered(request: TableRequest) -> str:
    """Return what a table of numbers and labels without an order lacks, and what to use instead; "" for others."""
    columns, source, options = request.columns, request.source, request.options
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


def _advise_on_counts(request: TableRequest) -> str:
    """Return how to forecast a column that looks as if it counted the rows; "" if there is none."""
    kind = find_kind("series")
    for name in [c.name for c in request.columns if c.role == "id" and not c.is_string]:
        if _list_plans(request.ask(target=(name,), kind=kind)):
            how = f"target={name} kind={kind}"
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


def _find_nearest(request: TableRequest) -> TaskPlan | None:
    """Return a plan that keeps as many of the options as possible, first the target, then the input."""
    changes: tuple[dict[str, Any], ...] = (
        {"kind": None},
        {"kind": find_kind("tags")},
        {"input": ()},
        {"input": (), "kind": None},
        {"target": (), "kind": None},
    )
    numbers = {c.name for c in request.columns if c.role == "number"}
    for change in changes:
        fewer = request.ask(**change)
        is_other = fewer.options != request.options and (fewer.options.input or fewer.options.target)
        for plan in _list_plans(fewer) if is_other else ():
            if plan.form.target != "tags" or not numbers.intersection(plan.target):  # tags are names
                return plan
    return None


def _list_plans(request: TableRequest) -> list[TaskPlan]:
    """List the plans that have a target; none if the options cannot be combined."""
    try:
        return [plan for plan in list_choices(request) if plan.form.target != "next"]
    except UserError:
        return []
