"""A commented settings file (TOML) for a data set, which `seqloom init` writes."""

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
from seqloom.lab.kinds.settings import TrainSettings

COMMENT_WIDTH = 100  # columns
# Detected properties of the data to write down.
DETECTED = ("input", "target", "known", "group", "time", "split", "kind")
MAX_COLUMNS = 20  # longer lists of columns are not written down


def build_template(
    data: str, task: Task, settings: TrainSettings, reading: Mapping[str, Any], options: Mapping[str, Any] | None
) -> str:
    """Return the text of a settings file.

    Settings that were given or detected are set; all others are comments that show the default.

    Args:
        data: The data, as given on the command line.
        reading: The given settings of reading the data.
        options: The given options of a built-in task.
    """
    chosen: dict[str, Any] = {"data": data}
    if options:
        chosen |= {f"task.{name}": value for name, value in options.items()}
    if task.encoding is not None:
        detected = {name: getattr(task.encoding.plan, name) for name in DETECTED}
        chosen |= {name: value for name, value in detected.items() if value and len(value) <= MAX_COLUMNS}
    chosen |= reading
    chosen |= {"model": settings.model} | {name: getattr(settings, name) for name in settings.model_fields_set}
    heading = [
        "Settings for `seqloom train --config THIS_FILE`; flags on the command line take precedence.",
        "Commented settings show their defaults; remove the # to change one.",
        "",
        *describe_task(task),
    ]
    records: dict[str, type[BaseModel]] = {"Training": TrainSettings}
    if task.encoding is not None:
        records = {"Reading the data": Reading, **records}
    return format_settings(heading, chosen, records)


def write_template(text: str, place: Path, force: bool) -> Path:
    """Write a new file; an existing one is replaced only with `force`."""
    if place.exists() and not force:
        raise UserError(f"{place} already exists; choose another file with --out, or replace it with --force")
    if not place.absolute().parent.is_dir():
        raise UserError(f"{place}: there is no folder {place.parent}")
    place.write_text(text, encoding="utf-8")
    return place


def format_settings(facts: Sequence[str], chosen: Mapping[str, Any], records: Mapping[str, type[BaseModel]]) -> str:
    """Return the facts as a comment, then every setting: those in `chosen` set, all others commented out."""
    lines = [f"# {line}".rstrip() for line in facts]
    described = {name: field for record in records.values() for name, field in record.model_fields.items()}
    for name in [name for name in chosen if name not in described]:
        lines += ["", f"{name} = {to_toml(chosen[name])}"]
    for heading, record in records.items():
        lines += ["", f"# {heading}"]
        for name, field in record.model_fields.items():
            lines += ["", *(f"# {line}" for line in textwrap.wrap(field.description or name, COMMENT_WIDTH))]
            if name in chosen:
                lines.append(f"{name} = {to_toml(chosen[name])}")
            else:
                default = field.get_default(call_default_factory=True)
                lines.append(f"# {name} =" if default in (None, ()) else f"# {name} = {to_toml(default)}")
    return "\n".join(lines) + "\n"


def to_toml(value: object) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
