"""Temporary names for what is being written: of one process alone, and cleared away if that process was killed."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
from pathlib import Path

_numbers = itertools.count()
_HOST = re.sub(r"\W", "_", platform.node() or "here")
_OURS = re.compile(rf"\..+\.{_HOST}-(\d+)-\d+\.new")


def beside(path: Path) -> Path:
    """Return a name in the folder of `path` that nobody else writes to; nothing is there yet.

    What processes of this machine left under such names in that folder when they were killed is removed.
    """
    clear(path.parent)
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{next(_numbers)}.new")


def clear(folder: Path) -> None:
    """Remove what killed processes of this machine left in a folder under names that `beside` gave."""
    if os.name != "posix" or not folder.is_dir():  # elsewhere a process cannot be asked for without touching it
        return
    for entry in os.scandir(folder):
        found = _OURS.fullmatch(entry.name)
        if found is None or _is_alive(int(found[1])):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            Path(entry.path).unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
