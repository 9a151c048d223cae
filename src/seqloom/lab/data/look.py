"""What data are, for a person and as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from seqloom.lab.console import write_as_flags
from seqloom.lab.data.opening import open_data
from seqloom.lab.data.task import Classes, Notes, Tags, Task, Tokens, Values

NAMED = 12  # classes that are shown by name


def opened(data: str, options: Mapping[str, Any]) -> Task:
    """The task. Where it cannot be decided which, its columns are printed before the error is raised."""
    try:
        return open_data(data, options)[0]
    except ValueError:
        if Path(data).exists() and (found := _columns(data, options)):
            from seqloom.lab.data.pipeline.columns import table

            print(table(found, {}))
        raise


def _columns(data: str, options: Mapping[str, Any]) -> list[Any]:
    from seqloom.lab.data.pipeline.columns import describe
    from seqloom.lab.data.pipeline.reading import reading
    from seqloom.lab.data.pipeline.source import source

    try:
        return describe(source(data, reading(**options), Notes()))
    except ValueError:
        return []


def facts(task: Task) -> list[str]:
    """Some lines for a person: columns, what is learned, sizes, what is worth knowing."""
    table = getattr(task, "table", "")
    return ([*table.splitlines(), ""] if table else []) + about(task)


def about(task: Task) -> list[str]:
    """The same without the columns."""
    learned = f"task    {task.name}: {task.kind}, {space(task.input)} -> {space(task.target)}"
    sizes = "splits  " + ", ".join(f"{name} {_size(split.size)}" for name, split in task.splits.items())
    return [learned, sizes, *said(task)]


def columns(task: Task) -> list[dict[str, str]]:
    """The columns by their headings, which stand above where the fields begin."""
    head, *lines = getattr(task, "table", "").splitlines() or [""]
    names = [(m.group(), m.start()) for m in re.finditer(r"\S+( \S+)*", head)]
    ends = [start for _, start in names[1:]] + [None]
    return [{name: line[a:b].strip() for (name, a), b in zip(names, ends, strict=True)} for line in lines]


def said(task: Task) -> list[str]:
    """What is worth knowing, options named as flags."""
    return [f"{'warning' if note.warning else 'note':8}{write_as_flags(note.text)}" for note in task.notes]


def space(what: Any) -> str:
    """An input or a target in a few words."""
    if isinstance(what, Tokens):
        return f"{what.unit} ({what.size:,} different)"
    if isinstance(what, (Classes, Tags)):
        kind = "classes" if isinstance(what, Classes) else "tags"
        shown = ", ".join(what.names[:NAMED]) + (" ..." if what.size > NAMED else "")
        return f"{what.size} {kind}: {shown}"
    shown = ", ".join(what.names[:NAMED]) + (" ..." if what.size > NAMED else "")
    ahead = f", {what.steps} steps" if isinstance(what, Values) and what.steps > 1 else ""
    return f"{shown}{ahead}"


def _size(size: int | None) -> str:
    return "without end" if size is None else f"{size:,}"


def document(task: Task) -> dict[str, Any]:
    """The same as JSON."""
    plan = getattr(getattr(task, "saved", None), "plan", None)
    return {
        "task": task.name,
        "kind": task.kind,
        "uses": None if plan is None else plan.uses,
        "table": getattr(task, "table", None),
        "input": {"is": type(task.input).__name__.lower(), **asdict(task.input)},
        "target": {"is": type(task.target).__name__.lower(), **asdict(task.target)},
        "splits": {name: asdict(split) for name, split in task.splits.items()},
        "notes": [asdict(note) for note in task.notes],
    }
