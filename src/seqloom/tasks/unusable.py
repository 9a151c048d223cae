"""Rows that nothing can be learned from, and rows that are only a step of an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.task import Notes
from seqloom.tasks.coders.times import checked
from seqloom.tasks.plan import Plan
from seqloom.tasks.source import Part, Source

Array = np.ndarray[Any, Any]


def usable(source: Source, plan: Plan, notes: Notes) -> Array:
    """(N,) bool: the input is not empty and the target is not missing. The others are counted."""
    schema = source.frame().collect_schema()
    checks = {f"an empty {plan.input[0]!r}": _empty(plan.input[0], schema)} if plan.layout != "wide" else {}
    for name in plan.target if plan.kind != "generate" else ():
        checks[f"no {name!r}"] = _empty(name, schema) if plan.kind != "regress" else pl.col(name).is_null()
    names = list(dict.fromkeys([*plan.input, *plan.target]))
    flags = [check.alias(told) for told, check in checks.items()]
    found = pl.concat([frame.select(flags) for _, frame in source.chunks(names)])
    for told in found.columns:
        bad = found[told].arg_true()
        if len(bad):
            first = source.place(int(bad[0]))
            notes.warn(f"{len(bad)} of {source.rows} rows have {told} (first: {first}); left out")
    if plan.kind == "tag":
        _aligned(source, plan)
    return ~found.select(pl.any_horizontal(pl.all())).to_series().to_numpy()


def _empty(name: str, schema: Any) -> pl.Expr:
    column = pl.col(name)
    if schema[name].is_nested():
        return column.is_null() | (column.list.len() == 0)
    if schema[name] == pl.String:
        return column.is_null() | (column.str.strip_chars() == "")
    return column.is_null()


def _aligned(source: Source, plan: Plan) -> None:
    one, other = (pl.col(name).list.len() for name in (plan.input[0], plan.target[0]))
    counts = [(one != other).alias("bad"), one.alias("one"), other.alias("other")]
    bad = pl.concat([frame.select(counts) for _, frame in source.chunks([plan.input[0], plan.target[0]])])
    rows = bad["bad"].arg_true()
    if len(rows):
        row = int(rows[0])
        told = f"{bad['one'][row]} {plan.input[0]} but {bad['other'][row]} {plan.target[0]}"
        raise ValueError(f"{source.place(row)}: {told}; each token needs one label")


def long_rows(source: Source, plan: Plan, work: Path) -> Source:
    """A long table, one step a row, as one row for each group: its steps in the order of time."""
    name_of_group = plan.group or ""
    group = pl.col(name_of_group)
    steps = pl.col(*plan.input, *([plan.time] if plan.time else []))
    parts = []
    for number, part in enumerate(source.parts):
        frame = pl.scan_ipc(part.table).collect()
        if plan.time:
            at = pl.Series("_t", checked(frame[plan.time], lambda row, label=part.label: f"{label}: row {row + 1}"))
            frame = frame.with_columns(at).sort("_t", maintain_order=True)
        target = [pl.col(name).first() for name in plan.target]
        kinds = [pl.col(name).n_unique().alias(f"n {name}") for name in plan.target]
        rows = frame.group_by(group).agg(steps, *target, *kinds).sort(group)
        for name in plan.target:
            mixed = rows.filter(pl.col(f"n {name}") > 1)
            if len(mixed):
                told = f"{plan.group!r} {mixed[name_of_group][0]!r} has {mixed[f'n {name}'][0]} values of {name!r}"
                raise ValueError(f"{part.label}: {told}; a series needs one target")
        table = work / f"long.{number}.arrow"
        rows.write_ipc(table)
        parts.append(Part(part.label, part.split, part.fingerprint, table, len(rows)))
    return Source(source.name, tuple(parts))
