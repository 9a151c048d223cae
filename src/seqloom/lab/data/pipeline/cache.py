"""What was read once, kept on disk: folders that are complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from seqloom.lab.data.task import Notes
from seqloom.lab.files import scratch

VERSION = 3  # of the format and of how files are read; anything older is built again
DONE = "done.json"
BLOCK = 1 << 20


def home() -> Path:
    """SEQLOOM_CACHE, or seqloom under XDG_CACHE_HOME, or ~/.cache/seqloom."""
    if given := os.environ.get("SEQLOOM_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqloom"


def digest(*parts: bytes | str) -> str:
    """A short name for these parts together."""
    total = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()


def fingerprint(path: Path) -> str:
    """A hash of a file's bytes, or of all names and bytes below a folder."""
    total = hashlib.blake2b(digest_size=16)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if file != path:
            total.update(str(file.relative_to(path)).encode() + b"\0")
        with file.open("rb") as opened:
            while block := opened.read(BLOCK):
                total.update(block)
    return total.hexdigest()


def entry(key: str, build: Callable[[Path], None], notes: Notes) -> Path:
    """The folder of that key; `build` fills it where it is missing, old or damaged.

    It is filled under another name and then renamed, so that two processes may build the same
    one and a killed process leaves nothing that looks complete.
    """
    place = home() / key
    if place.exists():
        if _whole(place):
            return place
        notes.warn(f"the cache {place} was old or damaged and was built again")
        shutil.rmtree(place)
    place.parent.mkdir(parents=True, exist_ok=True)
    work = scratch.choose_name(place)
    try:
        work.mkdir()
        build(work)
        sizes = {file.name: file.stat().st_size for file in work.iterdir()}
        (work / DONE).write_text(json.dumps({"version": VERSION, "files": sizes}))
        try:
            work.rename(place)
        except OSError:
            if not _whole(place):  # else another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return place


def _whole(place: Path) -> bool:
    try:
        done = json.loads((place / DONE).read_text())
        sizes = {name: (place / name).stat().st_size for name in done["files"]}
        return bool(done["version"] == VERSION and sizes == done["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
