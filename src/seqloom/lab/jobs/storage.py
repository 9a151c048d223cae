"""Jobs' folders in a place that all machines reach, through fsspec.

    place/<key>/<name>/...     a copy of the whole folder as it was at one moment, under a name of its own
    place/<key>/latest         the name of the newest copy that is complete

A machine may die at any moment: `latest` is written when all files of a copy are there, and the copy
before is removed after that. A copy that was never completed stays, and nobody looks at it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LATEST = "latest"
LOOKS = 20  # at a folder that changes while it is copied


class Storage:
    """Of one job: `fetch` what is there, `keep` what has changed."""

    def __init__(self, place: str, key: str) -> None:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self.files, root = url_to_fs(place)
        self.root = f"{root.rstrip('/')}/{key}"
        self.seen: dict[str, tuple[int, int, int]] | None = None

    def fetch(self, own: Path) -> None:
        """The newest copy, into this folder; nothing where there is none."""
        name = self._latest()
        if name:
            own.mkdir(parents=True, exist_ok=True)
            self.files.get(f"{self.root}/{name}/", f"{own}/", recursive=True)

    def keep(self, own: Path) -> None:
        """A copy of this folder, unless nothing has changed since the last one."""
        with tempfile.TemporaryDirectory() as work:
            still, now = Path(work) / "still", look(own)
            for _ in range(LOOKS):
                if now == self.seen or not now:
                    return
                with suppress(OSError, shutil.Error):  # a file was renamed under our hands
                    shutil.copytree(own, still)
                before, now = now, look(own)
                if before == now:
                    break
                shutil.rmtree(still, ignore_errors=True)
            else:
                return  # it never stands still; the next time may be better
            self._put(still)
            self.seen = now

    def _put(self, still: Path) -> None:
        last, name = self._latest(), uuid.uuid4().hex
        self.files.makedirs(self.root, exist_ok=True)
        self.files.put(f"{still}/", f"{self.root}/{name}/", recursive=True)
        self.files.pipe(f"{self.root}/{LATEST}", name.encode())
        if last:
            with suppress(FileNotFoundError):
                self.files.rm(f"{self.root}/{last}", recursive=True)

    def _latest(self) -> str:
        self.files.invalidate_cache()
        try:
            return bytes(self.files.cat_file(f"{self.root}/{LATEST}")).decode()
        except FileNotFoundError:
            return ""


def look(folder: Path) -> dict[str, tuple[int, int, int]]:
    """What tells one state of a folder from another."""
    found = {}
    with suppress(FileNotFoundError):
        for path in sorted(folder.rglob("*")):
            facts = path.stat()
            if path.is_file():
                found[str(path)] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return found


@contextmanager
def copied(own: Path, storage: Storage, every: float) -> Iterator[None]:
    """Copies every so many seconds, and one at the end, whatever the end is."""
    done = threading.Event()

    def copy() -> None:
        while not done.wait(every):
            with suppress(Exception):  # a network may be down for a while: the next copy has it all
                storage.keep(own)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        storage.keep(own)
