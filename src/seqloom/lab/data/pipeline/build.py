"""From a source to an encoded task in the cache: look, choose, split, fit, encode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder, likely_unit
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline import cache, columns, splits
from seqloom.lab.data.pipeline.columns import Column
from seqloom.lab.data.pipeline.plan import Plan, plan
from seqloom.lab.data.pipeline.ragged import Writer
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.row_filter import long_rows, usable
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.saved import Saved, read_record
from seqloom.lab.data.pipeline.source import Source, source
from seqloom.lab.data.task import UNSEEN, Notes, Task

BINS = 100  # for a column of numbers
SHARE = 0.95  # of the commonest class's errors that a give-away avoids
CORRELATION = 0.999
ROLES = ("label", "number", "category", "id", "time")


NAMES = ("label", "category", "id", "text")


Array = np.ndarray[Any, Any]


def open_files(path: Any, options: Reading) -> Task:
    """The task behind a path; encoded once, then taken from the cache."""
    notes = Notes()
    found = source(path, options, notes)
    labels = " ".join(part.label for part in found.parts)
    key = cache.digest(__version__, found.fingerprint, labels, options.model_dump_json())
    try:
        place = cache.entry(f"task-{key}", partial(_build, found, options), notes)
    except ImportError:
        raise
    except UserError as error:
        if found.name in str(error):
            raise
        raise UserError(f"{found.name}: {error}") from error
    task = opened(place)
    task.notes[:0] = [note for note in notes if note not in task.notes]
    return task


def opened(place: Path, data: bool = True) -> Task:
    """The task of a folder of the cache, or of a run (`data=False`: no rows)."""
    from seqloom.lab.data.pipeline.stream import StreamTask
    from seqloom.lab.data.pipeline.windows import WindowsTask

    saved = Saved.load(read_record(place))
    kinds: dict[str, Any] = {"table": WindowsTask, "stream": StreamTask}
    task: Task = kinds.get(saved.plan.layout, RowsTask)(saved, place if data else None)
    return task


def _build(found: Source, options: Reading, work: Path) -> None:
    from seqloom.lab.data.pipeline.stream import build_stream
    from seqloom.lab.data.pipeline.tables import build_windows

    notes = Notes()
    described = columns.describe(found)
    chosen = plan(described, found, options, notes)
    if chosen.layout == "table":
        chosen = told_apart(found, chosen, described, options, notes)
    left = [f"{c.name} ({c.role})" for c in described if c.name not in chosen.uses]
    if left and chosen.layout != "stream":
        notes.say("left out: " + ", ".join(left))
    saved = Saved(found.name, chosen, options, None, notes=notes, table=columns.table(described, chosen.uses))
    if chosen.layout == "table":
        build_windows(found, saved, work)
    elif chosen.layout == "stream":
        build_stream(found, saved, work)
    else:
        giveaways(found, chosen, described, notes)
        _build_rows(found, saved, work)
    saved.save(work)


def _build_rows(found: Source, saved: Saved, work: Path) -> None:
    chosen, options, notes = saved.plan, saved.options, saved.notes
    if chosen.layout == "long":
        found = long_rows(found, chosen, work)
    keep = usable(found, chosen, notes)
    saved.x, saved.y, saved.times = _coders(found, chosen, options, notes)
    texts = isinstance(saved.x, (TextCoder, SubwordCoder))
    index = splits.split(found, chosen, keep, texts, options, notes)
    train = np.zeros(found.rows, dtype=bool)
    train[index["train"]] = True
    for coder in (saved.x, saved.y, saved.times):
        if coder is not None:
            coder.fit(_chosen(found, chosen, train))
    if saved.times is not None and saved.times.regular:
        notes.say(f"time stamps {chosen.time!r} are regular and not needed")
        saved.times = None
    _classes(found, saved, index, notes)
    write(found, saved, index, work)


def _chosen(found: Source, chosen: Plan, rows: Array) -> Iterator[pl.DataFrame]:
    for start, frame in found.chunks(needed(found, chosen)):
        yield frame.filter(pl.Series(rows[start : start + len(frame)]))


def needed(found: Source, chosen: Plan) -> list[str]:
    """Columns that coders read."""
    names = found.frame().collect_schema().names()
    extra = [chosen.time] if chosen.time and chosen.layout != "table" else []
    rate = ["rate"] if "audio" in chosen.input and "rate" in names else []
    return list(dict.fromkeys([*chosen.input, *(t for t in chosen.target if t in names), *extra, *rate]))


def _coders(found: Source, chosen: Plan, options: Reading, notes: Notes) -> tuple[Any, Any, Any]:
    schema = found.frame().collect_schema()
    x: Any
    first = schema[chosen.input[0]]
    if chosen.layout in ("wide", "long"):
        x = SeriesCoder(chosen.input, wide=chosen.layout == "wide")
    elif chosen.input[0] == "audio":
        x = AudioCoder("audio", options.mels)
    elif first.is_nested() and first.inner != pl.String:  # type: ignore[attr-defined]
        x = SeriesCoder(chosen.input)
    else:
        x = text_coder(found, chosen.input[0], chosen.kind, options, notes, end=chosen.kind == "generate")
    times = None
    if chosen.time and schema[chosen.time].is_nested():
        times = TimesCoder(chosen.time)
    if chosen.kind == "generate":
        return x, None, times
    if chosen.kind == "classify":
        return x, LabelCoder(chosen.target[0]), times
    if chosen.kind == "tag":
        return x, LabelCoder(chosen.target[0], per_token=True), times
    if chosen.kind == "regress":
        return x, ValuesCoder(chosen.target), times
    return x, text_coder(found, chosen.target[0], chosen.kind, options, notes, end=chosen.kind == "translate"), times


def text_coder(found: Source, column: str, kind: str, options: Reading, notes: Notes, end: bool) -> Any:
    """The unit that was asked for, or the likelier one."""
    sample = found.frame().select(column).head(2_000).collect().to_series()
    lower = options.lowercase
    if sample.dtype.is_nested():
        return TextCoder(column, "tokens", options.vocabulary, options.min_count, bool(lower), end)
    unit: str = options.unit
    if unit == "auto":
        unit = "characters" if kind == "transcribe" or found.stream else likely_unit(sample)
        notes.say(f"{column!r} is read by {unit}; unit=... takes another")
    if unit in ("bpe", "unigram"):
        return SubwordCoder(column, unit, options.vocabulary, bool(lower), end)
    if lower is None:
        lower = unit == "words" and kind in ("classify", "regress")
    min_count = options.min_count if unit == "words" else 1
    return TextCoder(column, unit, options.vocabulary, min_count, lower, end)


def _classes(found: Source, saved: Saved, index: dict[str, Array], notes: Notes) -> None:
    """Say what is odd about classes: only one, one example of one, or some that training lacks."""
    if not isinstance(saved.y, LabelCoder):
        return
    column, place = saved.y.column, found.parts[0].label
    if len(saved.y.names) < 2:
        one = f"only {saved.y.names[0]!r}" if saved.y.names else "no value at all"
        raise UserError(f"{place}: target {column!r} has {one} in training; there is nothing to tell apart")
    if saved.y.per_token:
        return
    ids = np.concatenate([saved.y.encode(frame)[0] for _, frame in found.chunks([column])])
    counts = np.bincount(ids[index["train"]], minlength=len(saved.y.names))
    single = [saved.y.names[i] for i in np.flatnonzero(counts == 1)]
    if single:
        notes.warn(f"{len(single)} of {len(counts)} classes have one training example: {', '.join(single[:5])}")
    for name, rows in index.items():
        unseen = rows[ids[rows] == UNSEEN]
        if len(unseen):
            label = found.frame().select(column).slice(int(unseen[0]), 1).collect().item()
            told = f"{found.place(int(unseen[0]))}, {label!r}"
            notes.warn(f"{len(unseen)} rows of {name!r} have a label that training lacks (first: {told}); always wrong")


def write(found: Source, saved: Saved, index: dict[str, Array], work: Path) -> None:
    """Encode all rows, cut those that are too long, and record the splits."""
    from seqloom.lab.data.pipeline.encoding import written

    coders = {"x": saved.x, "y": saved.y, "times": saved.times}
    writers = {name: (coder, Writer(work, name)) for name, coder in coders.items() if coder is not None}
    written(found, needed(found, saved.plan), writers, saved)
    for number, (name, rows) in enumerate(index.items()):
        np.save(work / f"split.{number}.npy", rows)
        facts = {"size": len(rows), "hash": cache.digest(found.fingerprint, rows.astype("<i8").tobytes())}
        saved.splits[name] = facts


def rows_over(path: Any, saved: Saved) -> Task:
    """Another file under the same coders; rows without a usable input or target are left out."""
    notes = Notes()
    found = source(path, saved.options, notes)
    names = found.frame().collect_schema().names()
    for name in (*saved.plan.input, *saved.plan.target):
        if name not in names:
            raise UserError(f"{found.parts[0].label}: no column {name!r}; there are {', '.join(names)}")
    coders = [c.state() for c in (saved.x, saved.y) if c is not None]
    key = cache.digest(found.fingerprint, repr(coders), saved.options.model_dump_json(), repr(saved.plan))

    def build(work: Path) -> None:
        rows = long_rows(found, saved.plan, work) if saved.plan.layout == "long" else found
        fresh = Saved(found.name, saved.plan, saved.options, saved.x, saved.y, saved.times, saved.table)
        keep = usable(rows, saved.plan, fresh.notes)
        named = np.concatenate([np.full(p.rows, p.split or "test", dtype=object) for p in rows.parts])
        index = {name: np.flatnonzero(keep & (named == name)) for name in dict.fromkeys(named.tolist())}
        _classes(rows, fresh, {"train": np.empty(0, np.int64), **index}, fresh.notes)
        write(rows, fresh, index, work)
        fresh.save(work)

    return opened(cache.entry(f"task-{key}", build, notes))


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
        raise UserError(f"{place}: {told}; join {', '.join(names)} into one, and say group=...")
    first = int(rows.select(pl.col(stamps.name).is_duplicated()).to_series().arg_max() or 0)
    told = f"{repeated} of {found.rows} rows repeat a time stamp of {stamps.name!r} (first: {found.place(first)})"
    notes.warn(f"{told}; they are steps in the order of the file")
    return plan


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
