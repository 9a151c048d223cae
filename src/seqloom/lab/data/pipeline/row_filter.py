"""Find rows that can be used, draw a sample, and join rows that are single steps of an example."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.times import parse_stamps
from seqloom.lab.data.pipeline.source import Source, SourcePart
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Notes

Array = np.ndarray[Any, Any]


def find_usable(source: Source, plan: TaskPlan, notes: Notes) -> Array:
    """Return (N,) bool: whether a row has an input and a target. Warn about the number of the others."""
    schema = source.frame().collect_schema()
    checks = {f"an empty {plan.input[0]!r}": _is_empty(plan.input[0], schema)} if plan.layout != "wide" else {}
    if len(plan.input) > 1 and schema[plan.input[0]] == pl.String:
        empty = pl.all_horizontal(_is_empty(name, schema) for name in plan.input)
        checks = {f"empty {', '.join(map(repr, plan.input))}": empty}
    for name in plan.target if plan.form.target != "next" else ():
        may_be_empty = plan.form.target == "numbers" or (
            plan.form.target == "labels" and schema[name].is_nested() and not has_step_sets(plan, schema)
        )
        checks[f"no {name!r}"] = pl.col(name).is_null() if may_be_empty else _is_empty(name, schema)
    names = list(dict.fromkeys([*plan.input, *plan.target]))
    flags = [check.alias(problem) for problem, check in checks.items()]
    faults = pl.concat([frame.select(flags) for _, frame in source.chunks(names)])
    for problem in faults.columns:
        rows = faults[problem].arg_true()
        if len(rows):
            place = source.place(int(rows[0]))
            notes.warn(f"rows with {problem}: {len(rows)} of {source.rows} (first: {place}); left out")
    if plan.form.target == "tags" or has_step_sets(plan, schema):
        _check_aligned(source, plan)
    return ~faults.select(pl.any_horizontal(pl.all())).to_series().to_numpy()


def has_step_sets(plan: TaskPlan, schema: pl.Schema) -> bool:
    """Return whether the target has a list of labels for each step."""
    return plan.form.target == "labels" and isinstance(getattr(schema[plan.target[0]], "inner", None), pl.List)


def _is_empty(name: str, schema: pl.Schema) -> pl.Expr:
    column = pl.col(name)
    if schema[name].is_nested():
        return column.is_null() | (column.list.len() == 0)
    if schema[name] == pl.String:
        return column.is_null() | (column.str.strip_chars() == "")
    return column.is_null()


def _check_aligned(source: Source, plan: TaskPlan) -> None:
    """Raise an error if a row has more or fewer tags than tokens."""
    tokens, tags = (pl.col(name).list.len() for name in (plan.input[0], plan.target[0]))
    counts = [(tokens != tags).alias("bad"), tokens.alias("tokens"), tags.alias("tags")]
    table = pl.concat([frame.select(counts) for _, frame in source.chunks([plan.input[0], plan.target[0]])])
    rows = table["bad"].arg_true()
    if len(rows):
        row = int(rows[0])
        counted = f"{table['tokens'][row]} {plan.input[0]} but {table['tags'][row]} {plan.target[0]}"
        raise UserError(f"{source.place(row)}: {counted}; each token needs one label")


def sample_rows(source: Source, rows: int, seed: int, work: Path, notes: Notes) -> Source:
    """Write a random sample of at most `rows` rows of each part, in their order."""
    parts = []
    for number, part in enumerate(source.parts):
        if part.rows <= rows:
            parts.append(part)
        else:
            chosen = np.sort(np.random.default_rng([seed, number]).choice(part.rows, rows, replace=False))
            table = work / f"sample.{number}.arrow"
            is_chosen = np.zeros(part.rows, dtype=bool)
            is_chosen[chosen] = True
            pl.scan_ipc(part.table).filter(pl.lit(pl.Series(is_chosen))).collect().write_ipc(table)
            notes.say(f"a random sample of {rows:,} of {part.rows:,} rows is used")
            parts.append(replace(part, table=table, rows=rows, numbers=tuple(chosen.tolist())))
    return replace(source, parts=tuple(parts))


def join_long_rows(source: Source, plan: TaskPlan, work: Path, piece: int | None = None) -> Source:
    """Write a long table, with one step per row, as a table with one row per group.

    Args:
        piece: Steps of a row if the plan has no group; None for all steps.
    """
    parts = []
    for number, part in enumerate(source.parts):
        rows = join_steps(pl.scan_ipc(part.table).collect(), plan, part.label, piece)
        rows = rows.sort(plan.group) if plan.group else rows
        table = work / f"long.{number}.arrow"
        rows.write_ipc(table)
        parts.append(SourcePart(part.label, part.split, part.fingerprint, table, len(rows)))
    return Source(source.name, tuple(parts))


def join_steps(frame: pl.DataFrame, plan: TaskPlan, label: str, piece: int | None = None) -> pl.DataFrame:
    """Join the rows of each group into one row, groups in file order, steps by time.

    Args:
        frame: One step per row; target columns may be absent.
        piece: Steps of a row if the plan has no group; None for all steps.
    """
    group = plan.group or "_piece"
    for name in [n for n in (plan.group, plan.time, *plan.input) if n and n not in frame.columns]:
        columns = ", ".join(frame.columns)
        raise UserError(f"{label}: no column {name!r}, which the training data have; the columns are {columns}")
    first = pl.int_range(pl.len()).alias("_first")
    if plan.time:
        at = pl.Series("_t", parse_stamps(frame[plan.time], lambda row: f"{label}: row {row + 1}"))
        frame = frame.with_columns(first, at).sort("_t", maintain_order=True)
    else:
        frame = frame.with_columns(first)
    if plan.group is None:
        frame = frame.with_columns((pl.int_range(pl.len()) // (piece or max(1, len(frame)))).alias(group))
    targets = [name for name in plan.target if name in frame.columns]
    if plan.form.target == "tags":
        lists = dict.fromkeys([*plan.input, *targets, *([plan.time] if plan.time else [])])
        rows = frame.group_by(group).agg(pl.col(*lists), pl.col("_first").min()).sort("_first").drop("_first")
        return rows if plan.group else rows.drop(group)
    steps = pl.col(*plan.input, *([plan.time] if plan.time else []))
    counts = [pl.col(name).n_unique().alias(f"n {name}") for name in targets]
    rows = frame.group_by(group).agg(
        steps, pl.col("_first").min(), *(pl.col(name).first() for name in targets), *counts
    )
    for name in targets:
        mixed = rows.filter(pl.col(f"n {name}") > 1).sort("_first")
        if len(mixed):
            conflict = f"{group!r} {mixed[group][0]!r} has {mixed[f'n {name}'][0]} values of {name!r}"
            raise UserError(f"{label}: {conflict}; a series needs one target")
    return rows.sort("_first").drop("_first", *(f"n {name}" for name in targets))
