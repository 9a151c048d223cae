"""Columns that alone give the target away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from seqloom.lab.data.pipeline.columns import Column
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Notes

BINS = 100  # for a column of numbers
SHARE = 0.95  # of the commonest class's errors that a give-away avoids
CORRELATION = 0.999
ROLES = ("label", "number", "category", "id", "time")


def giveaways(source: Source, plan: Plan, columns: Sequence[Column], notes: Notes) -> None:
    """Warn about each by name. Half of the rows teach the value's commonest class, the others test it."""
    if plan.kind not in ("classify", "regress") or len(plan.target) != 1 or plan.layout == "long":
        return
    target = pl.col(plan.target[0]).alias("y")
    for column in columns:
        many = column.role != "number" and column.distinct > source.rows / 5
        if column.name in plan.target or column.role not in ROLES or many:
            continue
        pair = source.columns(column.name, plan.target[0]).select(pl.col(column.name).alias("c"), target).drop_nulls()
        if len(pair) < 10:
            continue
        right = _correlation(pair) if plan.kind == "regress" else _accuracy(pair, column)
        if right is not None:
            used = "leave it out of input=" if column.name in plan.input else "it is not used"
            notes.warn(f"column {column.name!r} alone gives {plan.target[0]!r} away ({right}); {used}")


def _accuracy(pair: pl.DataFrame, column: Column) -> str | None:
    if column.role == "number" and column.distinct > BINS:
        pair = pair.with_columns(pl.col("c").rank("ordinal") * BINS // (len(pair) + 1))
    half = pl.Series(np.random.default_rng(0).random(len(pair)) < 0.5)
    known, asked = pair.filter(half), pair.filter(~half)
    votes = known.group_by("c", "y").len().sort("len", "y", descending=[True, False])
    learned = votes.group_by("c", maintain_order=True).agg(pl.col("y").first().alias("said"))
    right = asked.join(learned, on="c", how="left").select((pl.col("y") == pl.col("said")).fill_null(False).mean())
    usual = asked.select((pl.col("y") == pl.col("y").mode().first()).mean()).item()
    found: float = right.item()
    return f"{found:.1%} right" if usual < 1 and found >= usual + SHARE * (1 - usual) else None


def _correlation(pair: pl.DataFrame) -> str | None:
    if not pair.schema["c"].is_numeric() or not pair.schema["y"].is_numeric():
        return None
    r = pair.select(pl.corr("c", "y")).item()
    return f"correlation {r:.4f}" if r is not None and abs(r) >= CORRELATION else None
