"""Large files are read by a process of its own: what reading took goes back to the system before a training begins."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    found = subprocess.run([sys.executable, "-c", ENTRY], input=told, stdout=subprocess.PIPE, text=True, check=False)
    if error := found.stdout.strip():
        raise ValueError(json.loads(error.splitlines()[-1])["error"])


def main() -> None:
    """The process of its own: a path and options from stdin; on stdout a person's error, if there is one."""
    from seqloom.lab.data.pipeline.build import open_files

    told = json.loads(sys.stdin.read())
    try:
        open_files(told["path"], reading(**told["options"]))
    except (ValueError, OSError) as error:
        print(json.dumps({"error": str(error)}))


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*") if path.is_dir() else []
    return sum(file.stat().st_size for file in files if file.is_file())
