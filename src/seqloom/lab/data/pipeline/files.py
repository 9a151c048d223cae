"""Open the task of a path, which is encoded once and then read from the cache."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.core.plurals import list_some
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.build import build_files
from seqloom.lab.data.pipeline.encoding import Encoding, FileTask
from seqloom.lab.data.pipeline.reading import Reading, make_reading
from seqloom.lab.data.pipeline.rows import RowsTask
from seqloom.lab.data.pipeline.source import read_source
from seqloom.lab.data.pipeline.stream import StreamTask
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.readers import subprocess_call
from seqloom.lab.data.task import RECORD_FORMAT, DataSource, Notes, Task, read_record

LARGE = 1 << 30  # bytes; smaller files are read in this process
ENTRY = "from seqloom.lab.data.pipeline.files import main; main()"


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
    kinds: dict[str, Callable[[Encoding, Path | None], FileTask]] = {"table": WindowsTask, "stream": StreamTask}
    return kinds.get(encoding.plan.layout, RowsTask)(encoding, place if data else None)


def fill_cache(path: DataSource, options: Reading) -> None:
    """Read a large file or folder into the cache in a subprocess; do nothing for other data.

    If the subprocess fails or is killed, the caller reads the data itself and raises the error.
    """
    if not isinstance(path, (str, Path)):
        return
    files = [Path(path), *Path(path).rglob("*")]
    if sum(file.stat().st_size for file in files if file.is_file()) < LARGE:
        return
    with suppress(subprocess_call.SubprocessKilledError, RuntimeError):
        subprocess_call.call(ENTRY, {"path": str(path), "options": options.model_dump(mode="json")})


def main() -> None:
    """Run as the subprocess."""
    subprocess_call.answer(lambda request: open_files(request["path"], make_reading(**request["options"])))
