"""From a source to an encoded task in the cache: look, choose, split, fit, encode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom import __version__
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder, likely_unit
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline import cache, columns, leaks, splits
from seqloom.lab.data.pipeline.plan import Plan, plan
from seqloom.lab.data.pipeline.ragged import Writer
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.row_filter import long_rows, usable
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.saved import Saved, read_record
from seqloom.lab.data.pipeline.source import Source, source
from seqloom.lab.data.pipeline.stacked_series import told_apart
from seqloom.lab.data.task import UNSEEN, Notes, Task

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
    except ValueError as error:
        if found.name in str(error):
            raise
        raise ValueError(f"{found.name}: {error}") from error
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
        leaks.giveaways(found, chosen, described, notes)
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
        raise ValueError(f"{place}: target {column!r} has {one} in training; there is nothing to tell apart")
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
            raise ValueError(f"{found.parts[0].label}: no column {name!r}; there are {', '.join(names)}")
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
