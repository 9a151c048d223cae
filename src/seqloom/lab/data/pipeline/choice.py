"""Choose the only or likeliest plan that the columns of a file and the options allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from seqloom.core.errors import ChoiceError, UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.pipeline.plan import list_choices, list_flags
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.refusals import explain_refusal
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column, Notes
from seqloom.lab.kinds.forms import FORMS, TARGETS, find_kind

DATE_PARTS = ("year", "month", "day", "hour", "minute", "second")


def choose_plan(columns: Sequence[Column], source: Source, options: Reading, notes: Notes) -> TaskPlan:
    """Choose the only or likeliest plan that the columns and options allow.

    Raises:
        UserError: If an option names no column, or if no plan or several plans are possible.
    """
    by_name = {c.name: c for c in columns}
    place = source.parts[0].label
    named = (*options.input, *options.target, *options.known, options.group, options.time, options.split)
    for name in [name for name in named if name is not None and name not in by_name]:
        hint = suggest(name, by_name)
        raise UserError(f"{place}: no column {name!r}; {hint}{' ' if hint else ''}the columns are {', '.join(by_name)}")
    if options.group is not None and options.group == options.time:
        raise UserError(f"{place}: {options.group!r} cannot be both the group and the time; leave one of them out")
    if source.stream and options.form.target in (None, "next"):
        return TaskPlan(find_kind("next"), ("text",), ("text",), "stream")
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
        best += _list_on_request(columns, source, options)
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


def _list_on_request(columns: Sequence[Column], source: Source, options: Reading) -> list[TaskPlan]:
    """List the plans of kinds that compare several inputs, which are chosen on request only."""
    kinds = [kind for kind, form in FORMS.items() if form.inputs > 1] if options.kind is None else []
    return [plan for kind in kinds for plan in list_choices(columns, source, options.model_copy(update={"kind": kind}))]


def _check_date_parts(columns: Sequence[Column], options: Reading, place: str) -> None:
    """Raise an error for a table with dates spread over columns of years, months and days, unless its use is named."""
    parts = [c.name for c in columns if c.name.lower() in DATE_PARTS and c.role != "time"]
    is_spread = {"year", "month", "day"} <= {name.lower() for name in parts}
    if not is_spread or options.kind or options.input or options.time or any(c.role == "time" for c in columns):
        return
    raise UserError(
        f"{place}: {', '.join(map(repr, parts))} are parts of a date; write them as one column, such as 2026-12-31 "
        f"23:00:00, or give kind={find_kind('series')} to forecast the rows in the order of the file"
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
