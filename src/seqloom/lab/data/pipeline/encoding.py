"""The encoding of a task that was read from files, and such tasks; the coder of a text column."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache as keep
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
from pydantic import TypeAdapter

from seqloom.core.errors import UserError
from seqloom.lab.data.coders import calendar, letters, table, times  # noqa: F401  # `restore_coder` finds them
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.coder import restore_coder
from seqloom.lab.data.coders.labels import LabelCoder, StepSetCoder
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.text import JoinedTextCoder, SubwordCoder, TextCoder, guess_unit
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.row_filter import join_steps
from seqloom.lab.data.pipeline.source import Source, read_source
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import (
    RECORD_FORMAT,
    Column,
    DataSource,
    Input,
    Note,
    Notes,
    Split,
    Target,
    Task,
    read_record,
    write_record,
)

InputCoder: TypeAlias = TextCoder | SubwordCoder | JoinedTextCoder | SeriesCoder | AudioCoder | StepSetCoder
CODED = ("x", "y", "times", "letters", "attributes")  # what the coders of a task encode
SAMPLE_ROWS = 2_000  # rows of a text column from which its unit is guessed


@dataclass(eq=False)
class Encoding:
    """The plan, the options and the fitted coders of a task that was read from files."""

    name: str
    plan: TaskPlan
    options: Reading
    x: Any = None
    y: Any = None
    times: Any = None
    letters: Any = None
    attributes: Any = None
    columns: Sequence[Column] = ()
    splits: dict[str, Split] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    @property
    def coders(self) -> dict[str, Any]:
        """The coders that the task has, by what they encode."""
        coders = {name: getattr(self, name) for name in CODED}
        return {name: coder for name, coder in coders.items() if coder is not None}

    def save(self, folder: Path | str) -> None:
        record = {
            "task": "files",
            "name": self.name,
            "plan": asdict(self.plan),
            "options": self.options.model_dump(exclude_defaults=True),
            "columns": [asdict(column) for column in self.columns],
            "splits": {name: asdict(split) for name, split in self.splits.items()},
            "notes": [[note.text, note.warning] for note in self.notes],
        }
        states = {name: coder.state() for name, coder in self.coders.items()}
        write_record(folder, record | dict.fromkeys(CODED) | states)

    @staticmethod
    def load(record: dict[str, Any]) -> Encoding:
        """Restore an encoding from a record that `save` wrote."""
        record = {"attributes": None} | record  # format 3 has none
        coders = {name: restore_coder(record[name]) for name in CODED}
        plan, y = _make_adapter(TaskPlan).validate_python(record["plan"]), coders["y"]
        if isinstance(y, LabelCoder) and y.per_token != (plan.form.target == "tags"):
            raise UserError(f"labels per token {y.per_token} do not fit a task of kind {plan.kind}")
        return Encoding(
            record["name"],
            plan,
            Reading(**record["options"]),
            columns=_make_adapter(list[Column]).validate_python(record["columns"]),
            splits=_make_adapter(dict[str, Split]).validate_python(record["splits"]),
            notes=Notes(Note(text, warning) for text, warning in record["notes"]),
            **coders,
        )


@keep
def _make_adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401  # any annotation
    return TypeAdapter(kind)


class FileTask(Task):
    """A task that was read from files; without `data`, the folder of its encoded rows, it has no splits."""

    encoding: Encoding

    def __init__(self, encoding: Encoding, input: Input, target: Target, data: Path | None = None) -> None:
        splits = encoding.splits if data else {}
        super().__init__(encoding.name, encoding.plan.kind, input, target, splits, encoding.notes, encoding.columns)
        self.encoding = encoding

    @abstractmethod
    def build_other(self, source: Source, encoding: Encoding, work: Path) -> None:
        """Encode other data into a folder with a copy of this task's encoding, and record their splits."""

    def open_file(self, path: DataSource) -> Task:
        notes, encoding = Notes(), self.encoding
        source = read_source(path, encoding.options, notes)
        states = {name: coder.state() for name, coder in encoding.coders.items()}
        facts = (repr(states), encoding.options.model_dump_json(), repr(encoding.plan))
        key = cache.digest(str(RECORD_FORMAT), source.fingerprint, *facts)

        def build(work: Path) -> None:
            copy = replace(encoding, name=source.name, splits={}, notes=Notes())
            self.build_other(source, copy, work)
            copy.save(work)

        place = cache.find_or_build(f"task-{key}", build, notes)
        return type(self)(Encoding.load(read_record(place)), data=place)  # type: ignore[call-arg]

    def read_rows(self, path: DataSource, chunk: int = 1024) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of a file as dicts of all its columns; of a long table, one row per group."""
        options = self.encoding.options.model_copy(update={"input": (), "target": ()})
        source, plan = read_source(path, options, Notes()), self.encoding.plan
        if plan.layout == "long":
            rows = join_steps(source.frame().collect(), plan, source.parts[0].label).to_dicts()
            yield from (rows[start : start + chunk] for start in range(0, len(rows), chunk))
            return
        for start in range(0, source.rows, chunk):
            yield source.frame().slice(start, chunk).collect().to_dicts()

    def save(self, folder: Path | str) -> None:
        self.encoding.save(folder)


def make_text_coder(source: Source, column: str, encoding: Encoding, end: bool) -> TextCoder | SubwordCoder:
    """Create a coder for a text column, with the unit from the options or a guess."""
    sample = source.frame().select(column).head(SAMPLE_ROWS).collect().to_series()
    form, options = encoding.plan.form, encoding.options
    unit: str = options.unit
    if unit == "auto" and not sample.dtype.is_nested():
        is_spoken = form.target == "text" and not form.is_translated
        unit = "characters" if is_spoken or source.stream else guess_unit(sample)
        encoding.notes.say(f"{column!r} is split into {unit}; choose another unit with unit=...")
    return choose_text_coder(sample, column, options, unit, form.is_per_row, end)


def choose_text_coder(
    sample: pl.Series, column: str, options: Reading, unit: str, lowers: bool, end: bool = False
) -> TextCoder | SubwordCoder:
    """Create a coder for a column of texts in this unit, or of lists of tokens; `lowers`: words in lower case."""
    lower = options.lowercase
    if sample.dtype.is_nested():
        return TextCoder(column, "tokens", options.vocabulary, options.min_count, bool(lower), end)
    if unit in ("bpe", "unigram"):
        return SubwordCoder(column, unit, options.vocabulary, bool(lower), end)
    is_word = unit == "words"
    lower = is_word and lowers if lower is None else lower
    return TextCoder(column, unit, options.vocabulary, options.min_count if is_word else 1, lower, end)
