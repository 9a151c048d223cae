"""The encoding of a task that was read from files; it encodes new rows and decodes predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter, validate_call

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.attributes import AttributesCoder
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.calendar import Calendar
from seqloom.lab.data.coders.joined import JoinedTextCoder
from seqloom.lab.data.coders.label_sets import LabelSetCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.letters import LettersCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.step_sets import StepSetCoder
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.task_plan import TaskPlan
from seqloom.lab.data.task import Column, Note, Notes, Split, write_record

InputCoder: TypeAlias = TextCoder | SubwordCoder | JoinedTextCoder | SeriesCoder | AudioCoder | StepSetCoder
Coder: TypeAlias = (
    InputCoder | LabelCoder | ValuesCoder | TimesCoder | LettersCoder | AttributesCoder | TableCoder | Calendar
)
CODERS: dict[str, Any] = {
    "text": TextCoder,
    "subwords": SubwordCoder,
    "labels": LabelCoder,
    "label sets": LabelSetCoder,
    "step sets": StepSetCoder,
    "series": SeriesCoder,
    "values": ValuesCoder,
    "audio": AudioCoder,
    "times": TimesCoder,
    "letters": LettersCoder,
    "attributes": AttributesCoder,
    "joined": JoinedTextCoder,
    "table": TableCoder,
    "calendar": Calendar,
}


@dataclass(eq=False)
class Encoding:
    """The plan, the options and the fitted coders of a task that was read from files."""

    name: str
    plan: TaskPlan
    options: Reading
    x: Any
    y: Any = None
    times: Any = None
    letters: Any = None
    attributes: Any = None
    columns: Sequence[Column] = ()
    splits: dict[str, Split] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    def save(self, folder: Path | str) -> None:
        coders = {"x": self.x, "y": self.y, "times": self.times, "letters": self.letters}
        coders |= {"attributes": self.attributes}
        record = {
            "task": "files",
            "name": self.name,
            "plan": asdict(self.plan),
            "options": self.options.model_dump(exclude_defaults=True),
            "columns": [asdict(column) for column in self.columns],
            "splits": {name: asdict(split) for name, split in self.splits.items()},
            "notes": [[note.text, note.warning] for note in self.notes],
        }
        write_record(folder, record | {name: coder and coder.state() for name, coder in coders.items()})

    @staticmethod
    def load(record: dict[str, Any]) -> Encoding:
        """Restore an encoding from a record that `save` wrote."""
        x, y, times, letters = (restore_coder(record[name]) for name in ("x", "y", "times", "letters"))
        attributes = restore_coder(record.get("attributes"))  # format 3 has none
        plan = _make_adapter(TaskPlan).validate_python(record["plan"])
        if isinstance(y, LabelCoder) and y.per_token != (plan.form.target == "tags"):
            raise UserError(f"labels per token {y.per_token} do not fit a task of kind {plan.kind}")
        return Encoding(
            record["name"],
            plan,
            Reading(**record["options"]),
            x,
            y,
            times,
            letters,
            attributes,
            _make_adapter(list[Column]).validate_python(record["columns"]),
            _make_adapter(dict[str, Split]).validate_python(record["splits"]),
            Notes(Note(text, warning) for text, warning in record["notes"]),
        )

    def copy_for(self, name: str) -> Encoding:
        """Return an encoding with the same coders for another source, without splits and notes."""
        coders = (self.x, self.y, self.times, self.letters, self.attributes)
        return Encoding(name, self.plan, self.options, *coders, self.columns)


@cache
def _make_adapter(kind: Any) -> TypeAdapter[Any]:  # noqa: ANN401  # any annotation
    return TypeAdapter(kind)


@cache
def _check_arguments(name: str) -> Callable[..., None]:
    """Return the constructor of a coder, which checks the types of its arguments: they come from a file."""
    return validate_call(CODERS[name].__init__)


def restore_coder(state: dict[str, Any] | None) -> Coder | None:
    """Build the coder that returned this `state()`; None for None."""
    if state is None:
        return None
    arguments = dict(state)
    name = arguments.pop("coder")
    coder = object.__new__(CODERS[name])
    _check_arguments(name)(coder, **arguments)
    restored: Coder = coder
    return restored
