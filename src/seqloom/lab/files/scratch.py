"""Temporary names for files that are being written. What a killed process leaves under one is removed later."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_numbers = itertools.count()
_HOST = re.sub(r"\W", "_", platform.node() or "here")
_TOKEN = os.urandom(4).hex()  # a restarted container has the same host name and the same process ids
_OURS = re.compile(rf"\..+\.{_HOST}-(\d+)(?:-([0-9a-f]{{8}}))?-\d+\.new")


def choose_name(path: Path) -> Path:
    """Return a temporary name beside `path` that no other process uses.

    Leftovers of processes of this machine that were killed are removed from the folder first.
    """
    remove_leftovers(path.parent)
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{_TOKEN}-{next(_numbers)}.new")


@contextmanager
def make_folder(path: Path) -> Iterator[Path]:
    """Make a folder under a temporary name beside `path`, for this user alone, and remove it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = choose_name(path)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes of this machine left in a folder under names that `choose_name` returned."""
    if os.name != "posix" or not folder.is_dir():  # on Windows os.kill would end the process
        return
    for entry in os.scandir(folder):
        found = _OURS.fullmatch(entry.name)
        if found is None or _is_in_use(int(found[1]), found[2]):
            continue
        with suppress(OSError):  # another user's, or another process was faster
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _is_in_use(process: int, token: str | None) -> bool:
    return token == _TOKEN if process == os.getpid() else _is_alive(process)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
