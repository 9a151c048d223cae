"""Open the task of a path, which is encoded once and then read from the cache."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.core.plurals import list_some
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.build import build_files
from seqloom.lab.data.pipeline.encoding import Encoding
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.pipeline.stream import StreamTask
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import RECORD_FORMAT, DataSource, Notes, Task, read_record


def open_files(path: DataSource, options: Reading) -> Task:
    """Open the task of a path; it is encoded once and then read from the cache."""
    notes = Notes()
    source = read_source(path, options, notes)
    labels = " ".join(part.label for part in source.parts)
    key = cache.digest(__version__, str(RECORD_FORMAT), source.fingerprint, labels, options.model_dump_json())
    try:
        place = cache.find_or_build(f"task-{key}", partial(build_files, source, options), notes)
    except ImportError:
        raise
    except UserError as error:
        message = " ".join(str(error).splitlines())  # a column's name may hold line ends
        if not any(part.label in message for part in source.parts):
            message = f"{list_some([part.label for part in source.parts], 3)}: {message}"
        error.args = (message, *error.args[1:])
        raise
    task = load_files(place)
    task.notes[:0] = [note for note in notes if note not in task.notes]
    return task


def load_files(place: Path, data: bool = True) -> Task:
    """Load the task in a folder of the cache, or of a run (`data=False`: without rows)."""
    encoding = Encoding.load(read_record(place))
    kinds: dict[str, Any] = {"table": WindowsTask, "stream": StreamTask}
    task: Task = kinds.get(encoding.plan.layout, RowsTask)(encoding, place if data else None)
    return task
