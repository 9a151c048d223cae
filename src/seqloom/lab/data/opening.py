"""What a person calls data: a file, a folder, two parallel files, or the name of a task."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.readers.hub import PREFIX
from seqloom.lab.data.registry import TASKS, open_task
from seqloom.lab.data.task import Task

SHOWN = 8  # files that an error lists


def open_data(data: Any, options: Mapping[str, Any]) -> tuple[Task, dict[str, Any] | None]:
    """The task, and where it came from for a run's record (None where that cannot be written down).

    `data` is what `open_task` takes, or a `Task`; a text "a.de,a.en" is two files whose lines belong together.
    """
    if isinstance(data, Task):
        if options:
            raise UserError(f"the data are a task already, so {', '.join(options)} would change nothing; leave it out")
        return data, None
    if isinstance(data, str) and "," in data and not Path(data).exists():
        data = tuple(part.strip() for part in data.split(","))
    if isinstance(data, (str, Path)):
        _there(str(data))
    task = open_task(data, **options)
    return task, {"data": _plain(data), "options": dict(options)} if _plain(data) is not None else None


def reopen(source: Any) -> Task:
    """Open the same data again, as a run's record names them.

    Args:
        source: {"data": ..., "options": {...}}, as `open_data` returned it.

    Raises:
        ValueError: If it is something else: the data were in memory, or the record is another program's.
    """
    match source:
        case {"data": str() | list() | dict() as data, "options": dict() as options}:
            return open_data(tuple(data) if isinstance(data, list) else data, options)[0]
    raise UserError("the run does not say where its data came from; give the data")


def _there(data: str) -> None:
    """Raise where it is neither a task nor on disk, and say what there is."""
    path = Path(data)
    if data in TASKS or data.startswith(PREFIX) or path.exists():
        return
    beside = sorted(p.name for p in path.parent.iterdir() if p.name[0] != ".") if path.parent.is_dir() else []
    if any(name.startswith(path.name) for name in beside):  # GunPoint for GunPoint_TRAIN.ts and GunPoint_TEST.ts
        return
    near = difflib.get_close_matches(path.name, [*beside, *TASKS], 1)
    if near:
        hint = f"did you mean {str(path.parent / near[0]) if near[0] in beside else near[0]!r}?"
    elif beside and path.parent != Path("."):
        hint = f"{path.parent} holds {', '.join(beside[:SHOWN])}{' ...' if len(beside) > SHOWN else ''}"
    else:
        hint = f"give a path, or one of the tasks {', '.join(TASKS)}"
    raise UserError(f"{data!r} is neither a file, nor a folder, nor a task; {hint}")


def _plain(data: Any) -> Any:
    """As JSON; None for frames and other things that live in memory alone."""
    if isinstance(data, Mapping):
        inner = {str(split): _plain(value) for split, value in data.items()}
        return None if None in inner.values() else inner
    if isinstance(data, (str, Path)):
        known = str(data) in TASKS or str(data).startswith(PREFIX)
        return str(data) if known else str(Path(data).absolute())
    if isinstance(data, (list, tuple)) and all(isinstance(part, (str, Path)) for part in data):
        return [_plain(part) for part in data]
    return None
