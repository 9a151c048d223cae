"""Open tasks by name and files by path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.digits import DigitsTask
from seqloom.lab.data.names import HUB_PREFIX, check_exists, split_pair
from seqloom.lab.data.pipeline.reading import make_reading
from seqloom.lab.data.synthetic.adding import adding
from seqloom.lab.data.synthetic.copy import copy
from seqloom.lab.data.synthetic.listops import listops
from seqloom.lab.data.synthetic.pattern import pattern
from seqloom.lab.data.synthetic.recall import recall
from seqloom.lab.data.synthetic.reverse import reverse
from seqloom.lab.data.task import RECORD_FILE, DataSource, Task, read_record
from seqloom.lab.files.sealed import JSON, interpret

TASKS: dict[str, Callable[..., Task]] = {
    "adding": adding,
    "copy": copy,
    "pattern": pattern,
    "reverse": reverse,
    "recall": recall,
    "listops": listops,
    "digits": DigitsTask,
}
MOST = 10_000_000  # largest number that an option of a built-in task takes, such as the steps of a sequence


def find(name: str) -> Callable[..., Task]:
    """Return the function that builds the task with this name."""
    if name not in TASKS:
        hint = suggest(name, TASKS) or f"the tasks are {', '.join(TASKS)}"
        raise UserError(f"no task {name!r}; {hint}")
    return TASKS[name]


def _build(name: str, options: Mapping[str, Any]) -> Task:
    """Build the task of a name after checking the names and types of its options."""
    build = find(name)
    known = get_type_hints(vars(build).get("__init__", build))  # the annotations of a class or a function
    known.pop("return", None)
    for option, value in options.items():
        if option not in known:
            hint = suggest(option, known) or f"the options are {', '.join(known)}"
            raise UserError(f"task {name!r} has no option {option!r}: {hint}")
        kind = known[option]
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise UserError(f"task {name!r}: {option} must be of type {kind.__name__}, got {value!r:.80}")
        if kind is int and abs(value) > MOST:
            raise UserError(f"task {name!r}: {option} must be at most {MOST:,} in size, got {value!r:.80}")
    return build(**options)


def open_task(path_or_name: DataSource, /, **options: object) -> Task:
    """Open a task by name, or a file, folder, "hf:name", pair or dict of files.

        open_task("adding", steps=200)
        open_task("reviews.csv", target="stars", kind="regress")
        open_task({"train": "a.jsonl", "test": "b.jsonl"})
        open_task(("train.de", "train.en"))

    Args:
        path_or_name: A name in TASKS, a path, a polars or pandas frame, a pair of files whose lines belong together,
            or a dict from splits to files or frames.
        **options: The arguments of the named task, or the fields of `seqloom.lab.data.pipeline.reading.Reading`.

    Raises:
        UserError: If the data cannot be read, or an option is wrong.
    """
    if isinstance(path_or_name, str) and path_or_name in TASKS and not Path(path_or_name).exists():
        return _build(path_or_name, options)
    from seqloom.lab.data.pipeline.files import fill_cache, open_files

    reading = make_reading(**options)
    fill_cache(path_or_name, reading)
    return open_files(path_or_name, reading)


def load_task(folder: Path | str) -> Task:
    """Load a task that `Task.save` wrote; it encodes, decodes and opens other files, but has no splits."""
    record = read_record(folder)
    with interpret(Path(folder) / RECORD_FILE):
        if record["task"] != "files":
            return _build(record["task"], record["options"])
        from seqloom.lab.data.pipeline.files import load_files

        return load_files(Path(folder), data=False)


def open_data(data: DataSource | Task, options: Mapping[str, Any]) -> tuple[Task, dict[str, Any] | None]:
    """Open data that a user named, and return the task and a record of the source.

    Args:
        data: What `open_task` takes, or a `Task`. The text "a.de,a.en" names two files whose lines belong together.

    Returns:
        The task and {"data": ..., "options": ...} for `reopen`; None instead if the data exist only in memory.

    Raises:
        UserError: If the data do not exist or cannot be read.
    """
    if isinstance(data, Task):
        if options:
            raise UserError(f"the data are a task already; {', '.join(options)} would have no effect, leave it out")
        return data, None
    if isinstance(data, (str, Path)):
        check_exists(str(data))
    if isinstance(data, str):
        data = split_pair(data)
    task = open_task(data, **options)
    plain = _to_json(data)
    return task, None if plain is None else {"data": plain, "options": dict(options)}


def reopen(source: object) -> Task:
    """Open the same data again.

    Args:
        source: {"data": ..., "options": {...}}, as returned by `open_data`.

    Raises:
        UserError: If `source` is something else, because the data were in memory or another program wrote the record.
    """
    match source:
        case {"data": str() | list() | dict() as data, "options": dict() as options} if _is_address(data):
            return open_data(tuple(data) if isinstance(data, list) else data, options)[0]
    raise UserError("the run does not say where its data came from; give the data")


def _is_address(data: object) -> bool:
    """Return whether a value is an address that `_to_json` made."""
    if isinstance(data, dict):
        return bool(data) and all(not isinstance(part, dict) and _is_address(part) for part in data.values())
    if isinstance(data, list):
        return len(data) == 2 and all(isinstance(part, str) for part in data)
    return isinstance(data, str)


def _to_json(data: object) -> JSON:
    """Return the data's address as JSON; None for frames and other objects in memory."""
    if isinstance(data, Mapping):
        inner = {str(split): _to_json(value) for split, value in data.items()}
        return None if None in inner.values() else inner
    if isinstance(data, (str, Path)):
        is_name = str(data) in TASKS or str(data).startswith(HUB_PREFIX)
        return str(data) if is_name else str(Path(data).absolute())
    if isinstance(data, (list, tuple)) and all(isinstance(part, (str, Path)) for part in data):
        return [_to_json(part) for part in data]
    return None
