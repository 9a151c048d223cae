"""A task as JSON: enough to encode new rows and to decode predictions."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, validate_call

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.data.coders.times import TimesCoder
from seqloom.lab.data.pipeline.plan import Plan
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.task import Note, Notes
from seqloom.lab.files import sealed

CODERS: dict[str, Any] = {
    "text": TextCoder,
    "subwords": SubwordCoder,
    "labels": LabelCoder,
    "series": SeriesCoder,
    "values": ValuesCoder,
    "audio": AudioCoder,
    "times": TimesCoder,
}


FILE, FORMAT = "task.json", 1


@dataclass(eq=False)
class Saved:
    """The plan, the options and the fitted coders of a task that was read from files."""

    name: str
    plan: Plan
    options: Reading
    x: Any
    y: Any = None
    times: Any = None
    table: str = ""  # the columns, for a person
    splits: dict[str, Any] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    def save(self, folder: Path | str) -> None:
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        coders = {k: None if c is None else c.state() for k, c in (("x", self.x), ("y", self.y), ("times", self.times))}
        record = {
            "format": FORMAT,
            "task": "files",
            "name": self.name,
            "plan": self.plan.record(),
            "options": self.options.model_dump(exclude_defaults=True),
            "table": self.table,
            "splits": self.splits,
            "notes": [[note.text, note.warning] for note in self.notes],
        }
        (folder / FILE).write_bytes(sealed.dumps(record | coders))

    @staticmethod
    def load(record: dict[str, Any]) -> Saved:
        x, y, times = (restore(record[k]) for k in ("x", "y", "times"))
        plan = TypeAdapter(Plan).validate_python(record["plan"])
        if isinstance(y, LabelCoder) and y.per_token != (plan.kind == "tag"):
            raise UserError(f"labels per token {y.per_token} do not fit a task of kind {plan.kind}")
        return Saved(
            record["name"],
            plan,
            Reading(**record["options"]),
            x,
            y,
            times,
            record["table"],
            record["splits"],
            Notes(Note(text, warning) for text, warning in record["notes"]),
        )


def read_record(folder: Path | str) -> dict[str, Any]:
    """task.json of a folder, checked."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise UserError(f"{folder}: holds no {FILE}, so it is not a saved task")
    return sealed.loads(path.read_bytes(), path, FORMAT)


def restore(state: dict[str, Any] | None) -> Any:
    """The coder whose `state()` this was; None for None."""
    if state is None:
        return None
    rest = dict(state)
    made = object.__new__(CODERS[rest.pop("coder")])
    validate_call(type(made).__init__)(made, **rest)  # the types of what a file says
    return made
