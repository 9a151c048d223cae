"""Temporary names for files that are being written. What a killed process leaves under one is removed later."""

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


def choose_name(path: Path) -> Path:
    """Return a temporary name beside `path` that no other process uses.

    Leftovers of processes of this machine that were killed are removed from the folder first.
    """
    remove_leftovers(path.parent)
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{next(_numbers)}.new")


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes of this machine left in a folder under names that `choose_name` returned."""
    if os.name != "posix" or not folder.is_dir():  # on Windows os.kill would end the process
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
