"""What goes in and what comes out, chosen from the columns; or an error that lists the choices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.pipeline.columns import Column
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Kind, Notes

Layout = Literal["rows", "wide", "long", "table", "stream"]
TARGETS = ("label", "labels", "target", "class", "y", "output", "sentiment", "category", "tag", "tags")
INPUTS = ("text", "tokens", "series", "audio")
KINDS: dict[tuple[str, str], Kind] = {
    **{(i, "label"): "classify" for i in INPUTS},
    **{(i, "number"): "regress" for i in INPUTS},
    ("tokens", "tags"): "tag",
    ("text", "text"): "translate",
    ("tokens", "tokens"): "translate",
    ("audio", "text"): "transcribe",
}
RANK = {"tag": 0, "classify": 0, "translate": 0, "transcribe": 0, "forecast": 1, "regress": 2, "generate": 3}
WIDE = 8  # columns of numbers that make a row a series


@dataclass(frozen=True)
class Plan:
    """The kind of task and the use of every column.

    layout: "rows" (a row is an example), "wide" (its number columns are the steps), "long" (a
    group of rows is), "table" (rows are the steps of one series), "stream" (one long text).
    """

    kind: Kind
    input: tuple[str, ...]
    target: tuple[str, ...]
    layout: Layout = "rows"
    group: str | None = None
    time: str | None = None
    split: str | None = None

    @property
    def uses(self) -> dict[str, str]:
        used = dict.fromkeys(self.target, "target")
        used |= {name: "input" if name not in used else "input, target" for name in self.input}
        return used | {v: k for k in ("group", "time", "split") if (v := getattr(self, k))}

    def record(self) -> dict[str, Any]:
        return asdict(self)


def plan(columns: Sequence[Column], source: Source, options: Reading, notes: Notes) -> Plan:
    """What was said, completed by what the columns are."""
    by_name = {c.name: c for c in columns}
    place = source.parts[0].label
    asked = (*options.input, *options.target, options.group, options.time, options.split)
    for name in [name for name in asked if name is not None and name not in by_name]:
        hint = suggest(name, by_name)
        raise UserError(f"{place}: no column {name!r}; {hint}{' ' if hint else ''}there are {', '.join(by_name)}")
    if source.stream and options.kind in (None, "generate"):
        return Plan("generate", ("text",), ("text",), "stream")
    choices = _choices([_as_text(c, columns, options) for c in columns], options)
    if source.usual and not options.target:
        usual = [c for c in choices if c.input == source.usual[:1] and c.target == source.usual[1:]]
        if usual and len(choices) > 1:
            notes.say(f"{source.usual[1]!r} is the target, as is usual for this format; target=... takes another")
        choices = usual or choices
    best = _best(choices, options)
    if not best:
        told = ", ".join(f"{c.name} ({c.role})" for c in columns[:12])
        raise UserError(f"{place}: found nothing to learn in {told}; say what is input, target and kind")
    if len(best) > 1:
        listed = "; ".join(_say(c, by_name) for c in best[:10])
        raise UserError(f"{place}: more than one task is possible, choose one: {listed}")
    chosen = best[0]
    blind = [name for name in chosen.target if name not in chosen.input] if chosen.kind == "forecast" else []
    if blind:
        told = f"a forecast of {blind[0]!r} needs its past"
        raise UserError(f"{place}: {told}; say input={','.join((*chosen.input, *blind))}, too")
    alone = [c for c in columns if c.role == "constant" and c.name.lower() in TARGETS]
    if chosen.kind == "generate" and alone and options.kind is None:
        told = f"{alone[0].name!r} is {alone[0].example!r} in every row"
        raise UserError(f"{place}: {told}; there is nothing to tell apart (kind generate learns the texts alone)")
    return chosen


def _as_text(column: Column, columns: Sequence[Column], options: Reading) -> Column:
    """Names or ids are a text when one says that they go in, or when there is nothing else."""
    asked = column.name in options.input or len(columns) == 1
    return replace(column, role="text") if asked and column.string else column


def _choices(columns: Sequence[Column], options: Reading) -> list[Plan]:
    """Every task that the columns allow and the options do not forbid."""
    time = options.time or next((c.name for c in columns if c.role == "time"), None)
    times = next((c.name for c in columns if c.role == "times"), None)
    split = options.split or next((c.name for c in columns if c.role == "split"), None)
    free = [c for c in columns if c.name not in (options.group, options.split, options.time, split)]
    whole = {"group": options.group, "split": split}
    found = []
    for one in [c for c in free if c.role in INPUTS and c.name in (options.input or (c.name,))]:
        stamps = times if one.role == "series" else options.time
        for other in [c for c in free if c.name != one.name and c.name in (options.target or (c.name,))]:
            for role in _roles(other, bool(options.target), options.kind):
                if (one.role, role) in KINDS:
                    target = options.target if role == "number" and options.target else (other.name,)
                    found.append(Plan(KINDS[one.role, role], (one.name,), target, "rows", time=stamps, **whole))
        if one.role == "text" and options.target in ((), (one.name,)):
            found.append(Plan("generate", (one.name,), (one.name,), "rows", time=options.time, **whole))
    found += _numeric(free, options, time, split)
    found = list(dict.fromkeys(c for c in found if options.kind in (None, c.kind)))
    return [c for c in found if not options.input or set(c.input) == set(options.input)]


def _roles(column: Column, asked: bool, kind: str | None) -> list[str]:
    """The roles a target may play; a number or a category is a label only when one says so."""
    roles = [column.role]
    if column.numeric and column.role != "number" and kind == "regress":
        roles = ["number"]
    if asked and column.role in ("category", "id", "number", "text", "constant", "time") and kind == "classify":
        roles.append("label")
    if asked and column.role in ("category", "id", "constant"):
        roles.append("label")
    if asked and column.role in ("label", "category", "id", "constant") and kind in ("translate", "transcribe"):
        roles = ["text"]
    if asked and column.role == "tokens" and kind == "tag":
        roles = ["tags"]
    return roles


def _numeric(columns: Sequence[Column], options: Reading, time: str | None, split: str | None) -> list[Plan]:
    """Tables of numbers: a forecast, a series a row, or a series a group."""
    numbers = [c for c in columns if c.numeric and c.name != time]
    labels = [c for c in columns if c.role == "label" and c.name in (options.target or (c.name,))]
    found = []
    sequences = any(c.role in INPUTS for c in columns)
    measured = [c.name for c in numbers if c.role == "number" or c.name in (*options.input, *options.target)]
    plain = all(c.role in ("number", "constant") for c in columns)
    if measured and not sequences and (time or options.kind == "forecast" or plain):
        names = options.input or tuple(c.name for c in numbers if c.role != "constant")
        if options.group and options.kind != "forecast" and any(c.role == "label" for c in labels):
            names = tuple(n for n in names if n not in [c.name for c in labels])
            return [Plan("classify", names, (c.name,), "long", options.group, time, split) for c in labels]
        found.append(Plan("forecast", names, options.target or names, "table", options.group, time))
    for label in [] if sequences or time else labels:
        names = options.input or tuple(c.name for c in numbers if c.name != label.name)
        if len(names) >= WIDE or options.input:
            found.append(Plan("classify", names, (label.name,), "wide", options.group, None, split))
    return found


def _best(choices: list[Plan], options: Reading) -> list[Plan]:
    """The likeliest: by the name of the target, then by the kind."""
    named = [c for c in choices if c.target[0].lower() in TARGETS and c.kind != "generate"]
    pool = choices if options.target else named or choices
    lowest = min((RANK[c.kind] for c in pool), default=0)
    return [c for c in pool if RANK[c.kind] == lowest]


def _say(choice: Plan, columns: dict[str, Column]) -> str:
    target = columns[choice.target[0]]
    what = f"{choice.kind}, {target.distinct} different" if target.role in ("label", "tags") else choice.kind
    return f"input={','.join(choice.input[:3])} target={','.join(choice.target[:3])} ({what})"
