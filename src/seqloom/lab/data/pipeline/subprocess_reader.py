"""Read large files in a subprocess, so that their memory is returned to the system before training begins."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from seqloom.lab.data.pipeline.reading import Reading, make_reading
from seqloom.lab.data.readers import subprocess_call
from seqloom.lab.data.task import DataSource

LARGE = 1 << 30  # bytes; smaller files are read in this process
ENTRY = "from seqloom.lab.data.pipeline.subprocess_reader import main; main()"


def fill_cache(path: DataSource, options: Reading) -> None:
    """Read a large file or folder into the cache in a subprocess; do nothing for other data.

    If the subprocess fails or is killed, the caller reads the data itself and raises the error.
    """
    if not isinstance(path, (str, Path)) or _count_bytes(Path(path)) < LARGE:
        return
    with suppress(subprocess_call.SubprocessKilledError, RuntimeError):
        subprocess_call.call(ENTRY, {"path": str(path), "options": options.model_dump(mode="json")})


def main() -> None:
    """Run as the subprocess."""
    from seqloom.lab.data.pipeline.files import open_files

    subprocess_call.answer(lambda request: open_files(request["path"], make_reading(**request["options"])))


def _count_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else []
    return sum(file.stat().st_size for file in files if file.is_file())
