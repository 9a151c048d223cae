"""What each column of a table is, found by looking at all of it once and at a sample closely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from seqloom.lab.data.pipeline.source import Source

SAMPLE, STEPS = 2_000, 16  # rows, and steps of each
CLASSES = 200  # more different names than this are no classes
IDS = ("id", "ids", "uuid", "guid", "idx", "index", "no", "nr", "key", "file", "filename", "path", "url")
TIMES = ("time", "times", "timestamp", "timestamps", "date", "datetime", "t", "year", "month")
CALENDAR = ("year", "month")  # a time stamp alone, but a number beside days and hours
WORDS = ("tokens", "words", "form")
SIDES = ("split", "set", "fold", "partition", "subset")
STAMP = r"^\d{4}[-/.]\d{1,2}([-/.]\d{1,2})?([ T]\d{1,2}:\d{2}.*)?$"
DAY_FIRST = r"^\d{1,2}[-/.]\d{1,2}[-/.]\d{4}([ T]\d{1,2}:\d{2}.*)?$"  # or the month
ID = r"^\S{1,64}$"


@dataclass(frozen=True)
class Column:
    """One column: its role and what shows it.

    Roles: text, tokens, tags (a label per token), series, audio, number, label, category (names
    that repeat, but too many for classes), time, times (a time stamp per step), split, id,
    constant, other.
    """

    name: str
    role: str
    distinct: int
    missing: int
    example: str
    whole: bool = False  # a label or constant that could be a number too
    string: bool = False

    @property
    def numeric(self) -> bool:
        return self.role == "number" or self.whole


def describe(source: Source) -> list[Column]:
    """One `Column` for each, in the order of the file. Only hashes of all values are held at once."""
    schema = source.frame().collect_schema()
    n, lists = source.rows, [name for name, kind in schema.items() if kind == pl.List(pl.String)]
    hashes: dict[str, list[pl.Series]] = {name: [] for name in schema}
    missing, aligned = dict.fromkeys(schema, 0), set(lists)
    samples: list[dict[str, Any]] = []
    for _, frame in source.chunks(list(schema)):
        some = frame.gather_every(max(1, n // SAMPLE)).with_columns(pl.col(pl.List).list.head(STEPS))
        samples += some.to_dicts()  # a slice would keep the whole piece
        for name, kind in schema.items():
            missing[name] += frame[name].null_count() + (int(frame[name].is_nan().sum()) if kind.is_float() else 0)
            if name in lists:
                hashes[name].append(frame[name].explode(empty_as_null=False).hash().unique())
            elif not kind.is_nested():
                hashes[name].append(frame[name].hash().unique())
        aligned -= {name for name in lists if (frame[name].list.len() != frame[lists[0]].list.len()).any()}
    sample = pl.DataFrame(samples, schema=schema)
    distinct = {name: pl.concat(parts).n_unique() if parts else n for name, parts in hashes.items()}
    found = []
    for name in schema:
        role, whole = _role(sample[name].drop_nulls(), distinct[name] - (missing[name] > 0), n)
        string = schema[name] == pl.String
        found.append(Column(name, role, distinct[name], missing[name], _example(sample[name]), whole, string))
    return _tags(found, aligned)


def _role(values: pl.Series, distinct: int, n: int) -> tuple[str, bool]:
    """The role, and whether a label or constant could be a number too."""
    kind, name = values.dtype, values.name.lower()
    if kind.is_nested():
        return _nested(values, name), False
    if distinct <= 1 and n > 1:
        return "constant", kind.is_numeric()
    if kind.is_temporal():
        return "time", False
    if kind == pl.Boolean:
        return "label", False
    few = distinct <= n / 2
    if kind.is_numeric():
        if name in TIMES and (distinct > n / 2 or name not in CALENDAR):
            return "time", False
        if kind.is_integer() and (_named_id(name) or (distinct == n and values.diff().drop_nulls().n_unique() == 1)):
            return "id", False
        whole = bool(kind.is_integer() or (values.is_finite() & (values == values.round())).all())
        return ("label" if whole and distinct <= 20 and few else "number"), whole
    if kind != pl.String:
        return "other", False
    if name in SIDES and set(values.str.to_lowercase().unique()) <= {
        "train",
        "valid",
        "val",
        "validation",
        "dev",
        "test",
    }:
        return "split", False
    if values.str.contains(STAMP).all() or values.str.contains(DAY_FIRST).all():
        return "time", False
    short = bool(values.str.contains(ID).all())
    words = values.str.split(" ").list.len().mean()
    if short and (_named_id(name) or (distinct == n and bool(values.str.contains(r"\d").all()))):
        return "id", False
    if few and distinct <= CLASSES and float(words or 0) <= 4:  # type: ignore[arg-type]
        return "label", False
    return ("category" if short and distinct <= n / 5 else "text"), False


def _named_id(name: str) -> bool:
    return name in IDS or name.endswith("_id")


def _nested(values: pl.Series, name: str) -> str:
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


def _tags(columns: list[Column], aligned: set[str]) -> list[Column]:
    """Of lists of names that are always equally long, the one with the most names is the tokens."""
    same = [c for c in columns if c.name in aligned and c.role == "tokens"]
    if len(same) < 2:
        return columns
    most = max(same, key=lambda c: (c.name in WORDS, c.distinct))
    return [replace(c, role="tags") if c in same and c != most else c for c in columns]


def _example(values: pl.Series) -> str:
    first = next((v for v in values.head(50) if v is not None), None)
    if isinstance(first, pl.Series):
        first = first.head(4).to_list()
    text = " ".join(str(first).split())
    return text if len(text) <= 40 else text[:37] + "..."


def table(columns: Sequence[Column], uses: dict[str, str]) -> str:
    """One short table for a person: name, role, use, different values, missing ones, an example."""
    rows = [("column", "is", "used as", "different", "missing", "example")]
    rows += [(c.name, c.role, uses.get(c.name, "-"), str(c.distinct), str(c.missing), c.example) for c in columns]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = ["  ".join([*(f.ljust(w) for f, w in zip(row, widths, strict=False)), row[5]]).rstrip() for row in rows]
    return "\n".join(lines)
