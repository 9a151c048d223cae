"""A settings file in TOML, every setting in it with its meaning: `seqloom train --config` reads it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

WIDTH = 100


def settings_file(facts: Sequence[str], chosen: Mapping[str, Any], records: Mapping[str, type[BaseModel]]) -> str:
    """The text of the file: what is known of the data as a comment, then every setting.

    What is in `chosen` stands as it is; other settings are commented out and show their defaults.
    """
    lines = [f"# {line}".rstrip() for line in facts]
    described = {name: field for record in records.values() for name, field in record.model_fields.items()}
    for name in [name for name in chosen if name not in described]:
        lines += ["", f"{name} = {toml(chosen[name])}"]
    for heading, record in records.items():
        lines += ["", f"# {heading}"]
        for name, field in record.model_fields.items():
            lines += ["", *(f"# {line}" for line in textwrap.wrap(field.description or name, WIDTH))]
            if name in chosen:
                lines.append(f"{name} = {toml(chosen[name])}")
            else:
                default = field.get_default(call_default_factory=True)
                lines.append(f"# {name} =" if default in (None, ()) else f"# {name} = {toml(default)}")
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return json.dumps(str(value), ensure_ascii=False)
