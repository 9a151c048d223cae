"""Determine the role of each column of a table; warn of columns that reveal the target, and of marks such as -999."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.plurals import count
from seqloom.lab.data.coders.times import DAY_AND_NAME, NAME_AND_DAY, UNIX_RANGE
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column, Notes

SAMPLE_ROWS, SAMPLE_STEPS = 2_000, 16  # sampled rows, and steps of each
MAX_CLASSES = 200  # a column with more distinct names is not a label
IDS = ("id", "ids", "uuid", "guid", "idx", "index", "no", "nr", "key", "file", "filename", "path", "url")
TIMES = ("time", "times", "timestamp", "timestamps", "date", "datetime", "t", "year", "month")
# Words in the names of columns with Unix time.
TIME_WORDS = frozenset((*TIMES, "ts", "unix", "epoch", "utc", "created", "updated", "at"))
UNIX_UNITS = (1, 10**3, 10**6, 10**9)  # seconds, milliseconds, microseconds, nanoseconds
CALENDAR = ("year", "month")  # a time stamp if unique, else a number beside days and hours
TOKEN_NAMES = ("tokens", "words", "form")
# Columns with such names contain text, even with few distinct values; with the others, if it looks like text.
TEXTS = ("text", "texts", "sentence", "sentences", "utterance", "transcript", "document")
LIKELY_TEXTS = (
    *("review", "comment", "message", "body", "content", "question", "answer", "query", "prompt", "tweet"),
    *("headline", "description", "abstract", "summary", "dialogue", "premise", "hypothesis", "title"),
)
FEW_NAMES = 20  # a column with a likely name, single words and at most this many distinct values is still a label
FEWEST_ROWS_OF_PHRASE = 5  # phrases that occur less often on average, and are more than FEW_NAMES, are texts
SPLIT_COLUMNS = ("split", "set", "fold", "partition", "subset")
MAX_SPLITS = 20
STAMP = r"^\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([ T]\d{1,2}:\d{2}.*)?$"
DAY_FIRST = r"^\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([ T]\d{1,2}:\d{2}.*)?$"  # or month first
NAMED_MONTH = rf"({DAY_AND_NAME}|{NAME_AND_DAY})([ T]\d{{1,2}}:\d{{2}}.*)?$"  # Dec 31, 2026
ID = r"^\S{1,64}$"
LEAK_ROLES = ("label", "number", "category", "id", "time")
LEAK_BINS = 100  # bins of a column of numbers
LEAK_SHARE = 0.95  # a leak avoids this share of the errors of always predicting the most frequent class
LEAK_CORRELATION = 0.999
MARKS = (-99999.0, -9999.0, -999.0, -99.0, 999.0, 9999.0, 99999.0)
FEWEST = 2  # times that a mark occurs
MOST_COLUMNS, MOST_NAMED = 200, 5  # that are searched; that are named


def describe_columns(source: Source) -> list[Column]:
    """Describe every column, in file order. Memory holds only the hashes of all values."""
    schema = source.frame().collect_schema()
    n, lists = source.rows, [name for name, kind in schema.items() if kind == pl.List(pl.String)]
    hashes: dict[str, list[pl.Series]] = {name: [] for name in schema}
    missing, aligned = dict.fromkeys(schema, 0), set(lists)
    samples: list[dict[str, Any]] = []
    for _, frame in source.chunks(list(schema)):
        some = frame.gather_every(max(1, n // SAMPLE_ROWS)).with_columns(pl.col(pl.List).list.head(SAMPLE_STEPS))
        samples += some.to_dicts()  # a slice would keep the whole chunk in memory
        for name, kind in schema.items():
            missing[name] += frame[name].null_count() + (int(frame[name].is_nan().sum()) if kind.is_float() else 0)
            if name in lists:
                hashes[name].append(frame[name].explode(empty_as_null=False).hash().unique())
            elif not kind.is_nested():
                hashes[name].append(frame[name].hash().unique())
        aligned -= {name for name in lists if (frame[name].list.len() != frame[lists[0]].list.len()).any()}
    sample = pl.DataFrame(samples, schema=schema)
    distinct = {name: pl.concat(parts).n_unique() if parts else n for name, parts in hashes.items()}
    columns = []
    for name in schema:
        role, is_whole = _find_role(sample[name].drop_nulls(), distinct[name] - (missing[name] > 0), n)
        example, is_string = _format_example(sample[name]), schema[name] == pl.String
        columns.append(Column(name, role, distinct[name], missing[name], example, is_whole, is_string))
    has_audio = any(column.role == "audio" for column in columns)
    columns = [replace(c, role="rate") if has_audio and c.name == "rate" else c for c in columns]
    return _mark_tags(columns, aligned)


def _find_role(values: pl.Series, distinct: int, n: int) -> tuple[str, bool]:
    """Return the role, and whether a label or constant could also be a number."""
    kind, name = values.dtype, values.name.lower()
    if kind.is_nested():
        return _find_list_role(values, name), False
    if distinct <= 1 and n > 1:
        return "constant", kind.is_numeric()
    if kind.is_temporal():
        return "time", False
    if kind == pl.Boolean:
        return "label", False
    is_repetitive = distinct <= n / 2
    if kind.is_numeric():
        if name in TIMES and (distinct > n / 2 or name not in CALENDAR):
            return "time", False
        if _is_unix_time(values, name):
            return "time", False
        if kind.is_integer() and (is_id_name(name) or (distinct == n and values.diff().drop_nulls().n_unique() == 1)):
            return "id", False
        is_whole = bool(kind.is_integer() or (values.is_finite() & (values == values.round())).all())
        return ("label" if is_whole and distinct <= 20 and is_repetitive else "number"), is_whole
    if kind != pl.String:
        return "other", False
    if name in SPLIT_COLUMNS and distinct <= MAX_SPLITS and _are_splits(set(values.str.to_lowercase().unique())):
        return "split", False
    if any(values.str.contains(pattern).all() for pattern in (STAMP, DAY_FIRST, NAMED_MONTH)):
        return "time", False
    is_short = bool(values.str.contains(ID).all())
    words = float(values.str.split(" ").list.len().mean() or 0)  # type: ignore[arg-type]
    if name in TEXTS or (name in LIKELY_TEXTS and (words > 1.5 or distinct > max(FEW_NAMES, n / 5))):
        return "text", False
    if is_short and (is_id_name(name) or (distinct == n and bool(values.str.contains(r"\d").all()))):
        return "id", False
    are_phrases = words > 1.5 and distinct > max(FEW_NAMES, n / FEWEST_ROWS_OF_PHRASE)
    if is_repetitive and distinct <= MAX_CLASSES and words <= 4 and not are_phrases:
        return "label", False
    return ("category" if is_short and distinct <= n / 5 else "text"), False


def _are_splits(names: set[str]) -> bool:
    """Return whether names are those of splits; beside train and test, others may be additional test sets."""
    return set(names) <= set(SPLITS) or {"train", "test"} <= names


def is_id_name(name: str) -> bool:
    """Return whether a column's name says that it identifies rows or series."""
    return name.lower() in IDS or name.lower().endswith("_id")


def _is_unix_time(values: pl.Series, name: str) -> bool:
    """Return whether numbers are times since 1970: in range, and either named so or sorted with unequal steps."""
    known = values.drop_nans() if values.dtype.is_float() else values
    if not len(known):
        return False
    low, high = float(known.min()), float(known.max())  # type: ignore[arg-type]
    if not any(UNIX_RANGE[0] * unit <= low and high < UNIX_RANGE[1] * unit for unit in UNIX_UNITS):
        return False
    if set(re.split(r"[^a-z]+", name)) & TIME_WORDS or name.endswith(("time", "date", "stamp")):
        return True
    return not is_id_name(name) and values.dtype.is_integer() and known.is_sorted() and known.diff().n_unique() > 2


def _find_list_role(values: pl.Series, name: str) -> str:
    inner: Any = values.dtype
    depth = 0
    while isinstance(inner, (pl.List, pl.Array)):
        inner, depth = inner.inner, depth + 1
    if inner == pl.String:
        return "tokens" if depth == 1 else "other"
    if not inner.is_numeric() or depth > 2:
        return "times" if inner.is_temporal() and depth == 1 else "other"
    if depth == 1 and name in TIMES:
        return "times"
    return "audio" if name == "audio" else "series"


def _mark_tags(columns: list[Column], aligned: set[str]) -> list[Column]:
    """Among lists of names of equal lengths, keep the most varied one as tokens and make the others tags."""
    lists = [c for c in columns if c.name in aligned and c.role == "tokens"]
    if len(lists) < 2:
        return columns
    tokens = max(lists, key=lambda c: (c.name in TOKEN_NAMES, c.distinct))
    return [replace(c, role="tags") if c in lists and c != tokens else c for c in columns]


def _format_example(values: pl.Series) -> str:
    first = next((v for v in values.head(50) if v is not None), None)
    if isinstance(first, pl.Series):
        first = first.head(4).to_list()
    text = " ".join(str(first).split())
    return text if len(text) <= 40 else text[:37] + "..."


def warn_of_leaks(source: Source, plan: TaskPlan, columns: Sequence[Column], notes: Notes) -> None:
    """Warn about each column that predicts the target almost perfectly by itself."""
    if plan.form.target not in ("class", "numbers") or len(plan.target) != 1 or plan.layout == "long":
        return
    target = pl.col(plan.target[0]).alias("y")
    is_number = plan.form.target == "numbers"
    for column in columns:
        is_varied = column.role != "number" and column.distinct > source.rows / 5
        if column.name in plan.target or column.role not in LEAK_ROLES or is_varied:
            continue
        pairs = source.columns(column.name, plan.target[0]).select(pl.col(column.name).alias("c"), target).drop_nulls()
        if len(pairs) < 10:
            continue
        evidence = _measure_correlation(pairs) if is_number else _measure_accuracy(pairs, column)
        if evidence is not None:
            advice = "leave it out of input=..." if column.name in plan.input else "it is not used"
            notes.warn(f"column {column.name!r} alone predicts {plan.target[0]!r} ({evidence}); {advice}")


def _measure_accuracy(pairs: pl.DataFrame, column: Column) -> str | None:
    """Learn the most frequent class for each value on a random half of the rows and test it on the other half."""
    if column.role == "number" and column.distinct > LEAK_BINS:
        pairs = pairs.with_columns(pl.col("c").rank("ordinal") * LEAK_BINS // (len(pairs) + 1))
    half = pl.Series(np.random.default_rng(0).random(len(pairs)) < 0.5)
    train, test = pairs.filter(half), pairs.filter(~half)
    votes = train.group_by("c", "y").len().sort("len", "y", descending=[True, False])
    learned = votes.group_by("c", maintain_order=True).agg(pl.col("y").first().alias("guess"))
    right = test.join(learned, on="c", how="left").select((pl.col("y") == pl.col("guess")).fill_null(False).mean())
    baseline = test.select((pl.col("y") == pl.col("y").mode().first()).mean()).item()
    accuracy: float = right.item()
    is_leak = baseline < 1 and accuracy >= baseline + LEAK_SHARE * (1 - baseline)
    return f"{accuracy:.1%} right" if is_leak else None


def _measure_correlation(pairs: pl.DataFrame) -> str | None:
    if not pairs.schema["c"].is_numeric() or not pairs.schema["y"].is_numeric():
        return None
    r = pairs.select(pl.corr("c", "y")).item()
    return f"correlation {r:.4f}" if r is not None and abs(r) >= LEAK_CORRELATION else None


def warn_of_marks(source: Source, columns: Sequence[Column], notes: Notes) -> None:
    """Warn of columns in which such a number is repeated far from all others."""
    schema = source.frame().collect_schema()
    names = [c.name for c in columns if c.use and c.role != "time" and schema[c.name].is_numeric()][:MOST_COLUMNS]
    if not names:
        return
    numbers = source.frame().select(pl.col(name).cast(pl.Float64).alias(str(i)) for i, name in enumerate(names))
    is_mark = [pl.col(str(i)).is_in(MARKS) for i in range(len(names))]
    others = [pl.col(str(i)).filter(~mark & pl.col(str(i)).is_finite()) for i, mark in enumerate(is_mark)]
    facts = numbers.select(
        *(pl.col(str(i)).filter(mark).value_counts().implode().alias(f"marks {i}") for i, mark in enumerate(is_mark)),
        *(other.min().alias(f"low {i}") for i, other in enumerate(others)),
        *(other.max().alias(f"high {i}") for i, other in enumerate(others)),
    )
    found = facts.collect(engine="streaming").row(0, named=True)
    warnings = []
    for i, name in enumerate(names):
        low, high, marks = found[f"low {i}"], found[f"high {i}"], found[f"marks {i}"]
        for mark, rows in sorted(tuple(one.values()) for one in marks):
            is_far = low is not None and max(low - mark, mark - high) > max(-low, high, high - low)
            if rows >= FEWEST and is_far:
                warnings.append(
                    f"column {name!r} has {mark:g} in {count(rows, 'row')}, far from its other values "
                    f"({low:g} to {high:g}); if that marks missing values, leave these fields empty"
                )
    for warning in warnings[:MOST_NAMED]:
        notes.warn(warning)
