"""Read large files in a subprocess, so that their memory is returned to the system before training begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading, make_reading
from seqloom.lab.data.task import DataSource

LARGE = 1 << 30  # bytes; smaller files are read in this process
ENTRY = "from seqloom.lab.data.pipeline.subprocess_reader import main; main()"


def fill_cache(path: DataSource, options: Reading) -> None:
    """Read a large file or folder into the cache in a subprocess; do nothing for other data.

    If the subprocess cannot start or is killed, the caller reads the data and meets the same problem.
    """
    if not isinstance(path, (str, Path)) or _count_bytes(Path(path)) < LARGE:
        return
    request = json.dumps({"path": str(path), "options": options.model_dump(mode="json")})
    command = [sys.executable, "-P", "-c", ENTRY]  # -P: import nothing from the current folder
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(request + "\n")
            process.stdin.flush()
        reply = process.stdout.read()  # stdin stays open meanwhile: the subprocess takes its end as our death
    if error := reply.strip():
        raise UserError(json.loads(error.splitlines()[-1])["error"])


def main() -> None:
    """Run as the subprocess: take a path and options from stdin, and print an error of the user to stdout.

    The subprocess ends when its parent ends.
    """
    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    from seqloom.lab.data.pipeline.build import open_files

    try:
        open_files(request["path"], make_reading(**request["options"]))
    except (ValueError, OSError) as error:
        print(json.dumps({"error": str(error)}))


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock Python needs to shut down
    os._exit(1)


def _count_bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else []
    return sum(file.stat().st_size for file in files if file.is_file())
