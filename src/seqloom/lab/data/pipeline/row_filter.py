"""Rows that nothing can be learned from, and rows that are only a step of an example."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.times import checked
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.source import Part, Source
from seqloom.lab.data.task import Notes

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
        raise UserError(f"{source.place(row)}: {told}; each token needs one label")


def long_rows(source: Source, plan: Plan, work: Path) -> Source:
    """A long table, one step a row, as one row for each group: its steps in the order of time."""
    parts = []
    for number, part in enumerate(source.parts):
        rows = joined(pl.scan_ipc(part.table).collect(), plan, part.label).sort(plan.group or "")
        table = work / f"long.{number}.arrow"
        rows.write_ipc(table)
        parts.append(Part(part.label, part.split, part.fingerprint, table, len(rows)))
    return Source(source.name, tuple(parts))


def joined(frame: pl.DataFrame, plan: Plan, label: str) -> pl.DataFrame:
    """One row for each group, in the order in which they come; the target may be absent."""
    group = plan.group or ""
    for name in [n for n in (group, plan.time, *plan.input) if n and n not in frame.columns]:
        raise UserError(f"{label}: no column {name!r}, which training had; there are {', '.join(frame.columns)}")
    first = pl.int_range(pl.len()).alias("_first")
    if plan.time:
        at = pl.Series("_t", checked(frame[plan.time], lambda row: f"{label}: row {row + 1}"))
        frame = frame.with_columns(first, at).sort("_t", maintain_order=True)
    else:
        frame = frame.with_columns(first)
    there = [name for name in plan.target if name in frame.columns]
    steps = pl.col(*plan.input, *([plan.time] if plan.time else []))
    kinds = [pl.col(name).n_unique().alias(f"n {name}") for name in there]
    rows = frame.group_by(group).agg(steps, pl.col("_first").min(), *(pl.col(name).first() for name in there), *kinds)
    for name in there:
        mixed = rows.filter(pl.col(f"n {name}") > 1).sort("_first")
        if len(mixed):
            told = f"{group!r} {mixed[group][0]!r} has {mixed[f'n {name}'][0]} values of {name!r}"
            raise UserError(f"{label}: {told}; a series needs one target")
    return rows.sort("_first").drop("_first", *(f"n {name}" for name in there))
