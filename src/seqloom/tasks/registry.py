"""Tasks by name, and people's own files by path."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from seqloom.sealed import interpret
from seqloom.task import Task

TASKS = {
    "adding": "seqloom.tasks.adding:adding",
    "copy": "seqloom.tasks.copy:copy",
    "pattern": "seqloom.tasks.pattern:pattern",
    "reverse": "seqloom.tasks.reverse:reverse",
    "recall": "seqloom.tasks.recall:recall",
    "listops": "seqloom.tasks.listops:listops",
    "digits": "seqloom.tasks.digits_task:digits",
}


def find(name: str) -> Callable[..., Task]:
    """The function that makes the task of that name."""
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(TASKS)}"
        raise ValueError(f"no task {name!r}; {hint}")
    module, _, function = TASKS[name].partition(":")
    found: Callable[..., Task] = getattr(import_module(module), function)
    return found


def open_task(path_or_name: Any, **options: Any) -> Task:
    """A task by name with its own options, or a file, folder, "hf:name", pair or dict of files.

        open_task("adding", steps=200)
        open_task("reviews.csv", target="stars", kind="regress")
        open_task({"train": "a.jsonl", "test": "b.jsonl"})
        open_task(("train.de", "train.en"))

    A file's options are those of `seqloom.tasks.reading.Reading`.
    """
    if isinstance(path_or_name, str) and path_or_name in TASKS and not Path(path_or_name).exists():
        make = find(path_or_name)
        try:
            return make(**options)
        except TypeError as error:
            raise ValueError(f"task {path_or_name!r}: {str(error).split('() ')[-1]}") from None
    from seqloom.tasks.apart import read_apart
    from seqloom.tasks.build import open_files
    from seqloom.tasks.reading import reading

    chosen = reading(**options)
    read_apart(path_or_name, chosen)
    return open_files(path_or_name, chosen)


def load_task(folder: Path | str) -> Task:
    """What `Task.save` wrote: encodes and decodes, and reads other files with `over`."""
    from seqloom.tasks.saved import FILE, read_record

    record = read_record(folder)
    with interpret(Path(folder) / FILE):
        if record["task"] != "files":
            return find(record["task"])(**record["options"])
        from seqloom.tasks.build import opened

        return opened(Path(folder), data=False)
