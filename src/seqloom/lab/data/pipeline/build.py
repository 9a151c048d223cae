"""From a source to an encoded task in the cache: describe columns, choose a plan, split, fit, encode."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import (
    LabelCoder,
    LabelSetCoder,
    StepSetCoder,
    are_shifted,
    find_separator,
    find_typos,
)
from seqloom.lab.data.coders.letters import LettersCoder, are_words
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.table import AttributesCoder
from seqloom.lab.data.coders.text import JoinedTextCoder, SubwordCoder, TextCoder
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.choice import choose_plan
from seqloom.lab.data.pipeline.columns import describe_columns, warn_of_leaks, warn_of_marks
from seqloom.lab.data.pipeline.encoding import SAMPLE_ROWS, Encoding, InputCoder, make_text_coder
from seqloom.lab.data.pipeline.long_tables import mention_other_series, shorten_pieces, warn_of_no_order
from seqloom.lab.data.pipeline.plan import resolve_names, separate_series
from seqloom.lab.data.pipeline.ragged import RaggedWriter
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.row_filter import find_usable, has_step_sets, join_long_rows, sample_rows
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.pipeline.splits import split_rows
from seqloom.lab.data.pipeline.stream import build_stream
from seqloom.lab.data.pipeline.tables import build_windows
from seqloom.lab.data.pipeline.task_plan import TableRequest, TaskPlan
from seqloom.lab.data.task import END, UNSEEN, Notes, Split
from seqloom.lab.kinds.forms import find_kind

MOST_LABELS = 2_000  # labels of a multi-label task: each row stores a number for every label
LIKELY_SEPARATORS = ("|", ";")  # separators of labels in a class name; a comma may be part of the name
Array = np.ndarray[Any, Any]


def build_files(source: Source, options: Reading, work: Path) -> None:
    notes = Notes()
    columns = describe_columns(source)
    options = resolve_names(options, columns, notes)
    request = TableRequest(columns, source, options)
    plan = choose_plan(request, notes)
    options = shorten_pieces(source, plan, options)
    request = replace(request, options=options)
    mention_other_series(plan, request, notes)
    warn_of_no_order(plan, source, notes)
    if plan.layout == "table":
        plan = separate_series(plan, request, notes)
    columns = [replace(column, use=plan.uses.get(column.name, "")) for column in columns]
    unused = [f"{column.name} ({column.role})" for column in columns if not column.use]
    if unused and plan.layout != "stream":
        notes.say("columns not used: " + ", ".join(unused))
    warn_of_marks(source, columns, notes)
    encoding = Encoding(source.name, plan, options, None, columns=columns, notes=notes)
    if plan.layout == "table":
        build_windows(source, encoding, work)
    elif plan.layout == "stream":
        if options.rows is not None:
            notes.warn("one long text has no rows, so rows=... has no effect")
        build_stream(source, encoding, work)
    else:
        warn_of_leaks(source, plan, columns, notes)
        _build_rows(source, encoding, work)
    encoding.save(work)


def _build_rows(source: Source, encoding: Encoding, work: Path) -> None:
    plan, options, notes = encoding.plan, encoding.options, encoding.notes
    if plan.layout == "long":
        source = join_long_rows(source, plan, work, options.lookback)
    if options.rows is not None:
        source = sample_rows(source, options.rows, options.split_seed, work, notes)
    usable = find_usable(source, plan, notes)
    encoding.x, encoding.y = _make_input_coder(source, encoding), _make_target_coder(source, encoding)
    schema = source.frame().collect_schema()
    encoding.times = TimesCoder(plan.time) if plan.time and schema[plan.time].is_nested() else None
    if plan.form.target == "tags" and isinstance(encoding.x, TextCoder) and encoding.x.unit == "tokens":
        tokens = source.frame().select(encoding.x.column).head(SAMPLE_ROWS).collect().to_series()
        encoding.letters = LettersCoder(encoding.x.column) if are_words(tokens) else None
    encoding.attributes = AttributesCoder(plan.attributes) if plan.attributes else None
    is_text = isinstance(encoding.x, (TextCoder, SubwordCoder, JoinedTextCoder))
    index = split_rows(source, plan, usable, is_text, options, notes)
    train = np.zeros(source.rows, dtype=bool)
    train[index["train"]] = True
    for coder in encoding.coders.values():
        chunks = source.chunks(_list_coded_columns(source, plan))
        coder.fit(frame.filter(pl.Series(train[start : start + len(frame)])) for start, frame in chunks)
    if encoding.times is not None and encoding.times.is_regular:
        notes.say(f"time stamps {plan.time!r} are regular and are not used")
        encoding.times = None
    _check_classes(source, encoding, index)
    _write(source, encoding, index, work)


def _list_coded_columns(source: Source, plan: TaskPlan) -> list[str]:
    """List the columns that coders read."""
    names = source.frame().collect_schema().names()
    time = [plan.time] if plan.time and plan.layout != "table" else []
    rate = ["rate"] if "audio" in plan.input and "rate" in names else []
    return list(dict.fromkeys([*plan.input, *plan.attributes, *(t for t in plan.target if t in names), *time, *rate]))


def _make_input_coder(source: Source, encoding: Encoding) -> InputCoder:
    plan, schema = encoding.plan, source.frame().collect_schema()
    first: Any = schema[plan.input[0]]
    step = getattr(first, "inner", None)
    if plan.layout in ("wide", "long") and first != pl.List(pl.String):
        return SeriesCoder(plan.input, wide=plan.layout == "wide")
    if plan.input[0] == "audio":
        return AudioCoder("audio", encoding.options.mels, _choose_rate(source, encoding.notes))
    # A list of whole numbers at each step holds labels.
    is_set = len(plan.input) == 1 and isinstance(step, pl.List) and step.inner.is_integer()
    if is_set and has_step_sets(plan, schema):
        return StepSetCoder(plan.input[0], is_input=True)
    if first.is_nested() and step != pl.String:
        return SeriesCoder(plan.input)
    x = make_text_coder(source, plan.input[0], encoding, end=plan.form.target == "next")
    if len(plan.input) == 1:
        return x
    encoding.notes.say(f"{', '.join(map(repr, plan.input))} are read as one sequence, with a separator between them")
    return JoinedTextCoder(plan.input, x)


def _make_target_coder(source: Source, encoding: Encoding) -> Any:  # noqa: ANN401  # any coder; None for next tokens
    plan, merge = encoding.plan, encoding.options.merge_labels
    target, column = plan.form.target, plan.target[0]
    if target == "next":
        return None
    if target == "class":
        return LabelCoder(column, merge=merge)
    if has_step_sets(plan, source.frame().collect_schema()):
        sample = source.frame().select(plan.input[0], column).head(SAMPLE_ROWS).collect()
        shifted = are_shifted(sample[plan.input[0]], sample[column])
        if shifted:
            encoding.notes.say(f"{column!r} is {plan.input[0]!r} one step later; models that look ahead are not used")
        return StepSetCoder(column, merge=merge, shifted=shifted)
    if target == "labels":
        return LabelSetCoder(column, merge=merge)
    if target == "tags":
        return LabelCoder(column, per_token=True)
    if target == "numbers":
        return ValuesCoder(plan.target)
    return make_text_coder(source, column, encoding, end=plan.form.is_translated)


def _choose_rate(source: Source, notes: Notes) -> int:
    """Return the lowest sampling rate of all recordings, to which the others are resampled; 0 if there is none."""
    if "rate" not in source.frame().collect_schema():
        return 0
    rates = sorted(int(rate) for rate in source.columns("rate")["rate"].drop_nulls().unique())
    if len(rates) > 1:
        listed = ", ".join(f"{rate:,}" for rate in rates[:5])
        notes.say(f"recordings have {len(rates)} sampling rates ({listed}); all are resampled to {rates[0]:,}")
    return rates[0] if rates else 0


def _check_classes(source: Source, encoding: Encoding, index: dict[str, Array]) -> None:
    """Raise an error for a single class; warn about classes with one training example and unseen labels."""
    if not isinstance(encoding.y, LabelCoder):
        return
    column, names, notes = encoding.y.column, encoding.y.names, encoding.notes
    if len(names) < 2:
        unit = "labels" if isinstance(encoding.y, LabelSetCoder) else "classes"
        values = f"only {names[0]!r}" if names else "no value at all"
        raise UserError(
            f"{source.parts[0].label}: target {column!r} has {values} in training; at least two {unit} are needed"
        )
    if isinstance(encoding.y, LabelSetCoder):
        _check_label_sets(source, encoding.y, index, notes)
    if encoding.y.per_token or isinstance(encoding.y, LabelSetCoder):
        return
    _suggest_label_sets(encoding.y, notes)
    for name, spellings in encoding.y.spellings.items():
        listed = ", ".join(map(repr, spellings[:5]))
        notes.say(f"labels {listed} are one class, {name!r}; keep them apart with merge_labels=False")
    ids = np.concatenate([encoding.y.encode(frame)[0] for _, frame in source.chunks([column])])
    counts = np.bincount(ids[index["train"]], minlength=len(names))
    single = [names[i] for i in np.flatnonzero(counts == 1)]
    if single:
        notes.warn(f"classes with one training example: {len(single)} of {len(counts)} ({', '.join(single[:5])})")
    sizes = dict(zip(names, counts.tolist(), strict=True))
    for name, other in find_typos(sizes)[:5]:
        notes.warn(
            f"class {name!r} ({count(sizes[name], 'training row')}) may be a misspelt {other!r} ({sizes[other]:,}); "
            "if so, correct it in the file"
        )
    for name, rows, row in _list_unseen(index, ids == UNSEEN):
        label = source.frame().select(column).slice(row, 1).collect().item()
        notes.warn(
            f"rows of {name!r} with a label that does not occur in training: {rows} "
            f"(first: {source.place(row)}, {label!r}); they count as wrong"
        )


def _list_unseen(index: dict[str, Array], is_unseen: Array) -> Iterator[tuple[str, int, int]]:
    """Yield each split with such rows, their number, and the first of them."""
    for name, rows in index.items():
        unseen = rows[is_unseen[rows]]
        if len(unseen):
            yield name, len(unseen), int(unseen[0])


def _check_label_sets(source: Source, coder: LabelSetCoder, index: dict[str, Array], notes: Notes) -> None:
    """Raise an error for too many labels; note where texts are split; warn about labels missing in training."""
    if len(coder.names) > MOST_LABELS:
        raise UserError(
            f"{source.parts[0].label}: target {coder.column!r} has {len(coder.names):,} different labels, and "
            f"at most {MOST_LABELS:,} are possible; keep the frequent ones"
        )
    if coder.separator:
        notes.say(f"{coder.column!r} is cut at {coder.separator!r} into {len(coder.names)} labels")
    counts = []
    for _, frame in source.chunks([coder.column]):
        values, lengths = coder.encode(frame)  # (sum of lengths, K + 1)
        row = np.repeat(np.arange(len(lengths)), lengths)
        counts.append(np.bincount(row, weights=values[:, -1], minlength=len(lengths)))
    for name, rows, first in _list_unseen(index, np.concatenate(counts) > 0):
        notes.warn(
            f"rows of {name!r} with a label that does not occur in training: {rows} (first: {source.place(first)}); "
            "such labels count as not found"
        )


def _suggest_label_sets(coder: LabelCoder, notes: Notes) -> None:
    """Add a note if classes look like several labels in one text."""
    names = pl.Series(coder.names, dtype=pl.String)
    separator = find_separator([names])
    if separator not in LIKELY_SEPARATORS:
        return
    if names.str.split(separator).explode().str.strip_chars().n_unique() < len(names):
        example = next(name for name in coder.names if separator in name)
        notes.say(
            f"classes such as {example!r} may be several labels; to predict each of them, "
            f"give kind={find_kind('labels')}"
        )


def _write(source: Source, encoding: Encoding, index: dict[str, Array], work: Path) -> None:
    """Encode all rows, truncate those that are too long, and record the splits."""
    _write_rows(source, encoding, work)
    for number, (name, rows) in enumerate(index.items()):
        np.save(work / f"split.{number}.npy", rows)
        encoding.splits[name] = Split(len(rows), cache.digest(source.fingerprint, rows.astype("<i8").tobytes()))


def _write_rows(source: Source, encoding: Encoding, work: Path) -> None:
    """Encode rows chunk by chunk; warn about rows that were truncated or have missing values."""
    limit, writers = encoding.options.limit, {name: RaggedWriter(work, name) for name in encoding.coders}
    long: list[Array] = []
    gaps: list[Array] = []
    for start, frame in source.chunks(_list_coded_columns(source, encoding.plan)):
        for name, coder in encoding.coders.items():
            values, lengths = coder.encode(frame)
            if name == "x":
                long.append(start + np.flatnonzero(lengths > limit))
                if isinstance(coder, SeriesCoder):
                    numbers, steps = coder.read(frame)
                    row = np.repeat(np.arange(len(steps)), steps)
                    gaps.append(start + np.unique(row[~np.isfinite(numbers).all(1)]))
            writers[name].add(
                *_cut_rows(values, lengths, limit, isinstance(coder, TextCoder | SubwordCoder) and coder.end)
            )
    for writer in writers.values():
        writer.close()
    warnings = {
        (f"longer than {limit} steps", "cut; keep more with limit=..."): np.concatenate(long),
        ("with missing values", "replaced by 0 and marked"): np.concatenate(gaps or [np.empty(0, np.int64)]),
    }
    for (problem, cure), rows in warnings.items():
        if len(rows):
            place = source.place(int(rows[0]))
            encoding.notes.warn(f"sequences {problem}: {len(rows)} of {source.rows} (first: {place}); {cure}")


def _cut_rows(values: Array, lengths: Array, limit: int, end: bool) -> tuple[Array, Array]:
    """Keep the first `limit` steps of every row; with `end`, a truncated row still ends with END."""
    if not (lengths > limit).any():
        return values, lengths
    cut_lengths = np.minimum(lengths, limit)
    removed_before = np.cumsum(lengths - cut_lengths) - (lengths - cut_lengths)
    cut = values[np.arange(cut_lengths.sum()) + np.repeat(removed_before, cut_lengths)]
    if end:
        cut[np.cumsum(cut_lengths)[lengths > limit] - 1] = END
    return cut, cut_lengths


def build_other_rows(source: Source, encoding: Encoding, work: Path) -> None:
    """Encode other data with the same coders; rows without a usable input or target are left out."""
    plan, names = encoding.plan, source.frame().collect_schema().names()
    for name in (*plan.input, *plan.attributes, *plan.target):
        if name not in names:
            raise UserError(f"{source.parts[0].label}: no column {name!r}; the columns are {', '.join(names)}")
    rows = join_long_rows(source, plan, work, encoding.options.lookback) if plan.layout == "long" else source
    usable = find_usable(rows, plan, encoding.notes)
    split_of = np.concatenate([np.full(p.rows, p.split or "test", dtype=object) for p in rows.parts])
    index = {name: np.flatnonzero(usable & (split_of == name)) for name in dict.fromkeys(split_of.tolist())}
    _check_classes(rows, encoding, {"train": np.empty(0, np.int64), **index})
    _write(rows, encoding, index, work)
