"""Large files are read by a process of its own: what reading took goes back to the system before a training begins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading, reading

LARGE = 1 << 30  # bytes
ENTRY = "from seqloom.lab.data.pipeline.subprocess_reader import main; main()"


def read_apart(path: Any, options: Reading) -> None:
    """Fill the cache, where one file or folder is large.

    A process that cannot start or is killed leaves the work to the caller, who meets the same trouble himself.
    """
    if not isinstance(path, (str, Path)) or _bytes(Path(path)) < LARGE:
        return
    told = json.dumps({"path": str(path), "options": options.model_dump(mode="json")})
    command = [sys.executable, "-c", ENTRY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(told + "\n")
            process.stdin.flush()
        found = process.stdout.read()  # stdin stays open until then: when it closes, this process is gone
    if error := found.strip():
        raise UserError(json.loads(error.splitlines()[-1])["error"])


def main() -> None:
    """The process of its own: a path and options from stdin; on stdout a person's error, if there is one.

    It ends with its parent, however that ends.
    """
    told = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    from seqloom.lab.data.pipeline.build import open_files

    try:
        open_files(told["path"], reading(**told["options"]))
    except (ValueError, OSError) as error:
        print(json.dumps({"error": str(error)}))


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # not sys.stdin.read, whose lock Python wants at its end
    os._exit(1)


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else []
    return sum(file.stat().st_size for file in files if file.is_file())
