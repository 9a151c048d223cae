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
from seqloom.lab.data.coders.attributes import AttributesCoder
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.joined import JoinedTextCoder
from seqloom.lab.data.coders.label_sets import LabelSetCoder, find_separator
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.letters import LettersCoder, are_words
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.step_sets import StepSetCoder, are_shifted
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.choice import choose_plan
from seqloom.lab.data.pipeline.columns import describe_columns, warn_of_leaks
from seqloom.lab.data.pipeline.encoding import Encoding
from seqloom.lab.data.pipeline.long_tables import mention_other_series, shorten_pieces, warn_of_no_order
from seqloom.lab.data.pipeline.missing_marks import warn_of_marks
from seqloom.lab.data.pipeline.plan import resolve_names, separate_series
from seqloom.lab.data.pipeline.ragged import Writer
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.row_filter import find_usable, has_step_sets, join_long_rows, sample_rows
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.pipeline.splits import split_rows
from seqloom.lab.data.pipeline.stream import build_stream
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.pipeline.text_coder import SAMPLE_ROWS, make_text_coder
from seqloom.lab.data.pipeline.typos import find_typos
from seqloom.lab.data.task import END, RECORD_FORMAT, UNSEEN, DataSource, Notes, Split
from seqloom.lab.kinds.forms import find_kind

MOST_LABELS = 2_000  # labels of a multi-label task: each row stores a number for every label
LIKELY_SEPARATORS = ("|", ";")  # separators of labels in a class name; a comma may be part of the name
Array = np.ndarray[Any, Any]


def build_files(source: Source, options: Reading, work: Path) -> None:
    from seqloom.lab.data.pipeline.tables import build_windows

    notes = Notes()
    columns = describe_columns(source)
    options = resolve_names(options, columns, notes)
    plan = choose_plan(columns, source, options, notes)
    options = shorten_pieces(source, plan, options)
    mention_other_series(plan, columns, source, options, notes)
    warn_of_no_order(plan, source, notes)
    if plan.layout == "table":
        plan = separate_series(source, plan, columns, options, notes)
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
    encoding.x, encoding.y, encoding.times = _make_coders(source, plan, options, notes)
    encoding.letters = _make_letters_coder(source, plan, encoding.x)
    encoding.attributes = AttributesCoder(plan.attributes) if plan.attributes else None
    is_text = isinstance(encoding.x, (TextCoder, SubwordCoder, JoinedTextCoder))
    index = split_rows(source, plan, usable, is_text, options, notes)
    train = np.zeros(source.rows, dtype=bool)
    train[index["train"]] = True
    for coder in (encoding.x, encoding.y, encoding.times, encoding.letters, encoding.attributes):
        if coder is not None:
            coder.fit(_select_rows(source, plan, train))
    if encoding.times is not None and encoding.times.is_regular:
        notes.say(f"time stamps {plan.time!r} are regular and are not used")
        encoding.times = None
    _check_classes(source, encoding, index, notes)
    _write(source, encoding, index, work)


def _select_rows(source: Source, plan: TaskPlan, rows: Array) -> Iterator[pl.DataFrame]:
    for start, frame in source.chunks(_list_coded_columns(source, plan)):
        yield frame.filter(pl.Series(rows[start : start + len(frame)]))


def _list_coded_columns(source: Source, plan: TaskPlan) -> list[str]:
    """List the columns that coders read."""
    names = source.frame().collect_schema().names()
    time = [plan.time] if plan.time and plan.layout != "table" else []
    rate = ["rate"] if "audio" in plan.input and "rate" in names else []
    return list(dict.fromkeys([*plan.input, *plan.attributes, *(t for t in plan.target if t in names), *time, *rate]))


def _make_coders(source: Source, plan: TaskPlan, options: Reading, notes: Notes) -> tuple[Any, Any, Any]:
    """Create the coders of x, y (None if targets are the next tokens) and time stamps (None without them)."""
    schema = source.frame().collect_schema()
    x: Any
    form = plan.form
    first = schema[plan.input[0]]
    if plan.layout in ("wide", "long") and first != pl.List(pl.String):
        x = SeriesCoder(plan.input, wide=plan.layout == "wide")
    elif plan.input[0] == "audio":
        x = AudioCoder("audio", options.mels, _choose_rate(source, notes))
    elif has_step_sets(plan, schema) and len(plan.input) == 1 and _holds_sets(first):
        x = StepSetCoder(plan.input[0], is_input=True)
    elif first.is_nested() and first.inner != pl.String:  # type: ignore[attr-defined]
        x = SeriesCoder(plan.input)
    else:
        x = make_text_coder(source, plan.input[0], plan.kind, options, notes, end=form.target == "next")
        if len(plan.input) > 1:
            x = JoinedTextCoder.wrap(plan.input, x)
            notes.say(f"{', '.join(map(repr, plan.input))} are read as one sequence, with a separator between them")
    times = None
    if plan.time and schema[plan.time].is_nested():
        times = TimesCoder(plan.time)
    if form.target == "next":
        return x, None, times
    if form.target == "class":
        return x, LabelCoder(plan.target[0], merge=options.merge_labels), times
    if has_step_sets(plan, schema):
        return x, _make_step_target_coder(source, plan, options, notes), times
    if form.target == "labels":
        return x, LabelSetCoder(plan.target[0], merge=options.merge_labels), times
    if form.target == "tags":
        return x, LabelCoder(plan.target[0], per_token=True), times
    if form.target == "numbers":
        return x, ValuesCoder(plan.target), times
    return x, make_text_coder(source, plan.target[0], plan.kind, options, notes, end=form.is_translated), times


def _holds_sets(column: pl.DataType) -> bool:
    """Return whether a column has a list of whole numbers at each step, which are read as labels."""
    step = getattr(column, "inner", None)
    return isinstance(step, pl.List) and step.inner.is_integer()


def _make_step_target_coder(source: Source, plan: TaskPlan, options: Reading, notes: Notes) -> StepSetCoder:
    sample = source.frame().select(plan.input[0], plan.target[0]).head(SAMPLE_ROWS).collect()
    shifted = are_shifted(sample[plan.input[0]], sample[plan.target[0]])
    if shifted:
        notes.say(f"{plan.target[0]!r} is {plan.input[0]!r} one step later; models that look ahead are not used")
    return StepSetCoder(plan.target[0], merge=options.merge_labels, shifted=shifted)


def _choose_rate(source: Source, notes: Notes) -> int:
    """Return the lowest sampling rate of all recordings, to which the others are resampled; 0 if there is none."""
    if "rate" not in source.frame().collect_schema():
        return 0
    rates = sorted(int(rate) for rate in source.columns("rate")["rate"].drop_nulls().unique())
    if len(rates) > 1:
        listed = ", ".join(f"{rate:,}" for rate in rates[:5])
        notes.say(f"recordings have {len(rates)} sampling rates ({listed}); all are resampled to {rates[0]:,}")
    return rates[0] if rates else 0


def _make_letters_coder(source: Source, plan: TaskPlan, x: Any) -> LettersCoder | None:  # noqa: ANN401  # any coder
    """Create a coder of letters if words are tagged."""
    if plan.form.target != "tags" or not isinstance(x, TextCoder) or x.unit != "tokens":
        return None
    sample = source.frame().select(x.column).head(SAMPLE_ROWS).collect().to_series()
    return LettersCoder(x.column) if are_words(sample) else None


def _check_classes(source: Source, encoding: Encoding, index: dict[str, Array], notes: Notes) -> None:
    """Raise an error for a single class; warn about classes with one training example and unseen labels."""
    if not isinstance(encoding.y, LabelCoder):
        return
    column, names = encoding.y.column, encoding.y.names
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
    for name, rows in index.items():
        unseen = rows[ids[rows] == UNSEEN]
        if len(unseen):
            row = int(unseen[0])
            label = source.frame().select(column).slice(row, 1).collect().item()
            notes.warn(
                f"rows of {name!r} with a label that does not occur in training: {len(unseen)} "
                f"(first: {source.place(row)}, {label!r}); they count as wrong"
            )


def _check_label_sets(source: Source, coder: LabelSetCoder, index: dict[str, Array], notes: Notes) -> None:
    """Raise an error for too many labels; note where texts are split; warn about labels missing in training."""
    if len(coder.names) > MOST_LABELS:
        raise UserError(
            f"{source.parts[0].label}: target {coder.column!r} has {len(coder.names):,} different labels, and "
            f"at most {MOST_LABELS:,} are possible; keep the frequent ones"
        )
    if coder.separator:
        notes.say(f"{coder.column!r} is cut at {coder.separator!r} into {len(coder.names)} labels")
    counts = [_count_unseen(*coder.encode(frame)) for _, frame in source.chunks([coder.column])]
    unseen = np.concatenate(counts)
    for name, rows in index.items():
        wrong = rows[unseen[rows] > 0]
        if len(wrong):
            place = source.place(int(wrong[0]))
            notes.warn(
                f"rows of {name!r} with a label that does not occur in training: {len(wrong)} (first: {place}); "
                "such labels count as not found"
            )


def _count_unseen(values: Array, lengths: Array) -> Array:
    """Return the number of unseen labels of each row; values (sum of lengths, K + 1)."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(row, weights=values[:, -1], minlength=len(lengths))


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
    coders = {"x": encoding.x, "y": encoding.y, "times": encoding.times, "letters": encoding.letters}
    coders |= {"attributes": encoding.attributes}
    writers = {name: (coder, Writer(work, name)) for name, coder in coders.items() if coder is not None}
    _write_rows(source, writers, encoding)
    for number, (name, rows) in enumerate(index.items()):
        np.save(work / f"split.{number}.npy", rows)
        encoding.splits[name] = Split(len(rows), cache.digest(source.fingerprint, rows.astype("<i8").tobytes()))


def _write_rows(source: Source, writers: dict[str, tuple[Any, Writer]], encoding: Encoding) -> None:
    """Encode rows chunk by chunk; warn about rows that were truncated or have missing values."""
    limit = encoding.options.limit
    long: list[Array] = []
    gaps: list[Array] = []
    for start, frame in source.chunks(_list_coded_columns(source, encoding.plan)):
        for name, (coder, writer) in writers.items():
            values, lengths = coder.encode(frame)
            if name == "x":
                long.append(start + np.flatnonzero(lengths > limit))
                if isinstance(coder, SeriesCoder):
                    gaps.append(start + _find_gaps(*coder.read(frame)))
            writer.add(*_cut_rows(values, lengths, limit, isinstance(coder, TextCoder | SubwordCoder) and coder.end))
    for _, writer in writers.values():
        writer.close()
    warnings = {
        (f"longer than {limit} steps", "cut; keep more with limit=..."): np.concatenate(long),
        ("with missing values", "replaced by 0 and marked"): np.concatenate(gaps or [np.empty(0, np.int64)]),
    }
    for (problem, cure), rows in warnings.items():
        if len(rows):
            place = source.place(int(rows[0]))
            encoding.notes.warn(f"sequences {problem}: {len(rows)} of {source.rows} (first: {place}); {cure}")


def _find_gaps(values: Array, lengths: Array) -> Array:
    """Return the numbers of rows with a value that is not finite; values (sum of lengths, D)."""
    row_of_step = np.repeat(np.arange(len(lengths)), lengths)
    return np.unique(row_of_step[~np.isfinite(values).all(1)])


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


def build_other_rows(path: DataSource, encoding: Encoding) -> Path:
    """Encode another file with the same coders and return its folder.

    Rows without a usable input or target are left out.
    """
    notes = Notes()
    source = read_source(path, encoding.options, notes)
    plan, names = encoding.plan, source.frame().collect_schema().names()
    for name in (*plan.input, *plan.attributes, *plan.target):
        if name not in names:
            raise UserError(f"{source.parts[0].label}: no column {name!r}; the columns are {', '.join(names)}")
    coders = [c.state() for c in (encoding.x, encoding.y, encoding.attributes) if c is not None]
    key = cache.digest(
        str(RECORD_FORMAT), source.fingerprint, repr(coders), encoding.options.model_dump_json(), repr(plan)
    )

    def build(work: Path) -> None:
        rows = join_long_rows(source, plan, work, encoding.options.lookback) if plan.layout == "long" else source
        copy = encoding.copy_for(source.name)
        usable = find_usable(rows, plan, copy.notes)
        split_of = np.concatenate([np.full(p.rows, p.split or "test", dtype=object) for p in rows.parts])
        index = {name: np.flatnonzero(usable & (split_of == name)) for name in dict.fromkeys(split_of.tolist())}
        _check_classes(rows, copy, {"train": np.empty(0, np.int64), **index}, copy.notes)
        _write(rows, copy, index, work)
        copy.save(work)

    return cache.find_or_build(f"task-{key}", build, notes)
