"""Inputs of several kinds: one or more texts, or another sequence, with numbers and names of the row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.columns import is_id_name
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column
from seqloom.lab.kinds.forms import FORMS, Kind

SEQUENCES = ("text", "tokens", "series", "audio")
ATTRIBUTES = ("number", "label", "category", "constant")


def split_inputs(columns: Sequence[Column], options: Reading, place: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Divide the inputs that are named in the options into sequences and attributes of a row.

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
    odd = [c for c in rest if c.role not in ATTRIBUTES and not _is_counter(c)]
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


def _is_counter(column: Column) -> bool:
    """Return whether a column looks like an id only because its numbers are consecutive."""
    return column.role == "id" and not column.is_string and not is_id_name(column.name)


def list_mixed_choices(
    columns: Sequence[Column], options: Reading, place: str, kinds: dict[str, Kind], common: dict[str, Any]
) -> list[Any]:
    """List plans for several inputs of different kinds and the named target.

    Args:
        columns: All columns.
        options: Name at least two inputs.
        place: The file, for messages.
        kinds: The kind of task for each target that is possible.
        common: Further fields of the plans.
    """
    sequences, attributes = split_inputs(columns, options, place)
    if not sequences:
        return []
    roles = {c.role for c in columns if c.name in sequences}
    is_joined = bool(attributes) or (len(sequences) > 1 and roles != {"series"})
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
