"""Several series in one table, below each other: their time stamps repeat, and a column tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from seqloom.lab.data.pipeline.columns import Column
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Notes

NAMES = ("label", "category", "id", "text")


def told_apart(found: Source, plan: Plan, columns: Sequence[Column], options: Reading, notes: Notes) -> Plan:
    """The plan with the column whose rows are one series each, where time stamps repeat and nobody said which."""
    stamps = next((c for c in columns if c.name == plan.time), None)
    if plan.group or stamps is None or stamps.distinct >= found.rows:
        return plan
    asked = (*options.input, *options.target, stamps.name)
    names = [c.name for c in columns if c.role in NAMES and c.name not in asked]
    rows = found.columns(stamps.name, *names)
    for name in names:
        if not rows.select(stamps.name, name).is_duplicated().any():
            notes.say(f"{stamps.name!r} repeats: each {name!r} is a series of its own; group=... names another column")
            without = [tuple(n for n in side if n != name) for side in (plan.input, plan.target)]
            return replace(plan, group=name, input=without[0], target=without[1])
    place, repeated = found.parts[0].label, found.rows - stamps.distinct
    if names and not rows.is_duplicated().any():
        told = f"{repeated} rows repeat a time stamp of {stamps.name!r}, and no one column tells their series apart"
        raise ValueError(f"{place}: {told}; join {', '.join(names)} into one, and say group=...")
    first = int(rows.select(pl.col(stamps.name).is_duplicated()).to_series().arg_max() or 0)
    told = f"{repeated} of {found.rows} rows repeat a time stamp of {stamps.name!r} (first: {found.place(first)})"
    notes.warn(f"{told}; they are steps in the order of the file")
    return plan
