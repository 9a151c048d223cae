"""A settings file for some data, written for a person to read and change."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from seqloom.core.errors import UserError
from seqloom.lab.data.description import describe_task
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.task import Task
from seqloom.lab.training.settings import TrainSettings

WIDTH = 100


PLAN = ("input", "target", "group", "time", "split", "kind")  # what was found out is written down
MOST = 20  # columns: more are left to be found again


def build_template(
    data: str, task: Task, settings: TrainSettings, said: Mapping[str, Any], made: Mapping[str, Any] | None
) -> str:
    """What was asked for and what was found stand in the file; all else is there as a comment."""
    chosen: dict[str, Any] = {"data": data}
    if made:
        chosen |= {f"task.{name}": value for name, value in made.items()}
    plan = getattr(getattr(task, "encoding", None), "plan", None)
    if plan is not None:
        found = {name: getattr(plan, name) for name in PLAN}
        chosen |= {name: value for name, value in found.items() if value and len(value) <= MOST}
    chosen |= said
    chosen |= {"model": settings.model} | {name: getattr(settings, name) for name in settings.model_fields_set}
    heading = [
        "Settings for `seqloom train --config THIS_FILE`; a flag on the command line wins over a line here.",
        "A line that starts with # shows a default: remove the # to change it.",
        "",
        *describe_task(task),
    ]
    records: dict[str, type[BaseModel]] = {"The training": TrainSettings}
    if plan is not None:
        records = {"How the data are read": Reading, **records}
    return format_settings(heading, chosen, records)


def write_template(text: str, place: Path, force: bool) -> Path:
    """A new file; one that is there may hold a person's work."""
    if place.exists() and not force:
        raise UserError(f"{place} is there already; name another with --out, or write over it with --force")
    if not place.absolute().parent.is_dir():
        raise UserError(f"{place}: there is no folder {place.parent}")
    place.write_text(text, encoding="utf-8")
    return place


def format_settings(facts: Sequence[str], chosen: Mapping[str, Any], records: Mapping[str, type[BaseModel]]) -> str:
    """The text of the file: what is known of the data as a comment, then every setting.

    What is in `chosen` stands as it is; other settings are commented out and show their defaults.
    """
    lines = [f"# {line}".rstrip() for line in facts]
    described = {name: field for record in records.values() for name, field in record.model_fields.items()}
    for name in [name for name in chosen if name not in described]:
        lines += ["", f"{name} = {to_toml(chosen[name])}"]
    for heading, record in records.items():
        lines += ["", f"# {heading}"]
        for name, field in record.model_fields.items():
            lines += ["", *(f"# {line}" for line in textwrap.wrap(field.description or name, WIDTH))]
            if name in chosen:
                lines.append(f"{name} = {to_toml(chosen[name])}")
            else:
                default = field.get_default(call_default_factory=True)
                lines.append(f"# {name} =" if default in (None, ()) else f"# {name} = {to_toml(default)}")
    return "\n".join(lines) + "\n"


def to_toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
