"""Temporary names for files that are being written, files that appear only when they are complete, and links.

Files that a killed process left under a temporary name are removed later.
"""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from seqloom.core.errors import UserError

STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")  # folders of pipes and devices, and of files that are open
_numbers = itertools.count()
_HOST = re.sub(r"\W", "_", platform.node() or "here")
_TOKEN = os.urandom(4).hex()  # a restarted container has the same host name and the same process ids
_OURS = re.compile(rf"\.(?P<final>.+)\.{_HOST}-(?P<pid>\d+)(?:-(?P<token>[0-9a-f]{{8}}))?-\d+\.new")


def choose_name(path: Path) -> Path:
    """Return a temporary name beside `path` that no other process uses.

    Files left in the folder by killed processes of this machine are removed first.
    """
    remove_leftovers(path.parent)
    return path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{_TOKEN}-{next(_numbers)}.new")


def find_final_name(path: str | Path) -> Path | None:
    """Return the name that a file or folder under a temporary name will have; None if no part of it is temporary."""
    for place in (Path(path), *Path(path).parents):
        if match := _OURS.fullmatch(place.name):
            return place.with_name(match["final"])
    return None


@contextmanager
def write_atomically(file: Path) -> Iterator[Path]:
    """Yield a temporary name to write to, which replaces `file` at the end.

    A link is followed; pipes and devices are written directly.

    Raises:
        UserError: If `file` is a folder.
    """
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file in it")
    if str(file.parent) in STREAMS or (file.exists() and not file.is_file()):
        yield file
        return
    file = file.resolve()
    work = choose_name(file)
    try:
        yield work
        os.replace(work, file)
    finally:
        work.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, with Unix line ends; its folder is created if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as work:
        work.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def make_folder(path: Path) -> Iterator[Path]:
    """Create a folder under a temporary name beside `path`, readable only by this user; remove it at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = choose_name(path)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes of this machine left in a folder."""
    if os.name != "posix" or not folder.is_dir():  # on Windows os.kill would end the process
        return
    for entry in os.scandir(folder):
        match = _OURS.fullmatch(entry.name)
        if match is None or _is_in_use(int(match["pid"]), match["token"]):
            continue
        with suppress(OSError):  # another user's, or already removed by another process
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def _is_in_use(process: int, token: str | None) -> bool:
    if process == os.getpid():
        return token == _TOKEN
    try:
        with suppress(PermissionError, OverflowError):
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def refuse_links(folder: Path) -> None:
    """Raise a UserError if there is a symbolic link in a folder, however deep. The folder itself may be one."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink():
                raise UserError(
                    f"{path} is a link to {os.readlink(path)}, and what is written there would change files outside "
                    f"of {folder}; replace the link by what it points to"
                )
