"""Cache on disk of files that were read: folders that are either complete or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

from seqloom.core.cache import cache_home
from seqloom.core.state import make_private
from seqloom.lab.data.task import Notes
from seqloom.lab.files import scratch

VERSION = 6  # version of the cache format and of the readers; older folders are rebuilt
DONE = "done.json"
BLOCK = 1 << 20  # bytes read at once


def digest(*parts: bytes | str) -> str:
    """Hash several parts into one short name."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def fingerprint(path: Path) -> str:
    """Hash the bytes of a file, or all names and bytes below a folder."""
    total = hashlib.blake2b(digest_size=16)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if file != path:
            total.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(BLOCK):
                total.update(block)
    return total.hexdigest()


def find_or_build(key: str, build: Callable[[Path], None], notes: Notes) -> Path:
    """Return the cache folder of a key; build it if it is missing, old or damaged.

    The folder is filled under another name and then renamed. Two processes may build the same folder, and a killed
    process leaves nothing that looks complete.

    Args:
        notes: Receives a warning if a damaged folder is replaced.
    """
    place = cache_home() / key
    if place.exists():
        if _is_complete(place):
            return place
        notes.warn(f"the cache {place} was old or damaged and has been rebuilt")
        shutil.rmtree(place)
    make_private(place.parent)
    with scratch.make_folder(place) as work:
        build(work)
        sizes = {file.name: file.stat().st_size for file in work.iterdir()}
        (work / DONE).write_text(json.dumps({"version": VERSION, "files": sizes}))
        try:
            work.rename(place)
        except OSError:
            if not _is_complete(place):  # if it is complete, another process was faster
                raise
    return place


def _is_complete(place: Path) -> bool:
    try:
        done = json.loads((place / DONE).read_text())
        sizes = {name: (place / name).stat().st_size for name in done["files"]}
        return bool(done["version"] == VERSION and sizes == done["files"])
    except (OSError, ValueError, KeyError, TypeError):  # whatever is wrong with it, it must be rebuilt
        return False
