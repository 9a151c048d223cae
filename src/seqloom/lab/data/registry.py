"""Tasks by name, and people's own files by path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.digits_task import digits
from seqloom.lab.data.synthetic.adding import adding
from seqloom.lab.data.synthetic.copy import copy
from seqloom.lab.data.synthetic.listops import listops
from seqloom.lab.data.synthetic.pattern import pattern
from seqloom.lab.data.synthetic.recall import recall
from seqloom.lab.data.synthetic.reverse import reverse
from seqloom.lab.data.task import Task
from seqloom.lab.files.sealed import interpret

TASKS: dict[str, Callable[..., Task]] = {
    "adding": adding,
    "copy": copy,
    "pattern": pattern,
    "reverse": reverse,
    "recall": recall,
    "listops": listops,
    "digits": digits,
}


def find(name: str) -> Callable[..., Task]:
    """The function that makes the task of that name."""
    if name not in TASKS:
        hint = suggest(name, TASKS) or f"there are {', '.join(TASKS)}"
        raise UserError(f"no task {name!r}; {hint}")
    return TASKS[name]


def open_task(path_or_name: Any, **options: Any) -> Task:
    """A task by name with its own options, or a file, folder, "hf:name", pair or dict of files.

        open_task("adding", steps=200)
        open_task("reviews.csv", target="stars", kind="regress")
        open_task({"train": "a.jsonl", "test": "b.jsonl"})
        open_task(("train.de", "train.en"))

    A file's options are those of `seqloom.lab.data.pipeline.reading.Reading`.
    """
    if isinstance(path_or_name, str) and path_or_name in TASKS and not Path(path_or_name).exists():
        make = find(path_or_name)
        try:
            return make(**options)
        except TypeError as error:
            raise UserError(f"task {path_or_name!r}: {str(error).split('() ')[-1]}") from None
    from seqloom.lab.data.pipeline.build import open_files
    from seqloom.lab.data.pipeline.reading import reading
    from seqloom.lab.data.pipeline.subprocess_reader import read_apart

    chosen = reading(**options)
    read_apart(path_or_name, chosen)
    return open_files(path_or_name, chosen)


def load_task(folder: Path | str) -> Task:
    """What `Task.save` wrote: encodes and decodes, and reads other files with `over`."""
    from seqloom.lab.data.pipeline.saved import FILE, read_record

    record = read_record(folder)
    with interpret(Path(folder) / FILE):
        if record["task"] != "files":
            return find(record["task"])(**record["options"])
        from seqloom.lab.data.pipeline.build import opened

        return opened(Path(folder), data=False)
