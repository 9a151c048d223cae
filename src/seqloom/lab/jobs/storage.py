"""Copies of jobs' folders in a storage that all machines can reach, through fsspec.

    place/<key>/<name>/...     a consistent copy of the whole folder, under a unique name
    place/<key>/latest         the name of the newest complete copy

A machine may die at any moment: `latest` is written after all files of a copy, and then the previous copy is
removed. An incomplete copy stays and is never read.
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
COPY_ATTEMPTS = 20  # attempts to copy a folder that changes meanwhile


class Storage:
    """The stored copies of one job's folder."""

    def __init__(self, place: str, key: str) -> None:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped]

        self.files, root = url_to_fs(place)
        self.root = f"{root.rstrip('/')}/{key}"
        self.seen: dict[str, tuple[int, int, int]] | None = None

    def fetch(self, own: Path) -> None:
        """Copy the newest stored copy, if any, into a folder."""
        name = self._read_latest()
        if name:
            own.mkdir(parents=True, exist_ok=True)
            self.files.get(f"{self.root}/{name}/", f"{own}/", recursive=True)

    def store(self, own: Path) -> None:
        """Store a copy of a folder, unless nothing has changed since the last one."""
        with tempfile.TemporaryDirectory() as work:
            still, now = Path(work) / "still", take_snapshot(own)
            for _ in range(COPY_ATTEMPTS):
                if now == self.seen or not now:
                    return
                with suppress(OSError, shutil.Error):  # a file was renamed while it was copied
                    shutil.copytree(own, still)
                before, now = now, take_snapshot(own)
                if before == now:
                    break
                shutil.rmtree(still, ignore_errors=True)
            else:
                return  # it kept changing; try again next time
            self._upload(still)
            self.seen = now

    def _upload(self, still: Path) -> None:
        last, name = self._read_latest(), uuid.uuid4().hex
        self.files.makedirs(self.root, exist_ok=True)
        self.files.put(f"{still}/", f"{self.root}/{name}/", recursive=True)
        self.files.pipe(f"{self.root}/{LATEST}", name.encode())
        if last:
            with suppress(FileNotFoundError):
                self.files.rm(f"{self.root}/{last}", recursive=True)

    def _read_latest(self) -> str:
        self.files.invalidate_cache()
        try:
            return bytes(self.files.cat_file(f"{self.root}/{LATEST}")).decode()
        except FileNotFoundError:
            return ""


def take_snapshot(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return inode, size and modification time of every file in a folder."""
    files = {}
    with suppress(FileNotFoundError):
        for path in sorted(folder.rglob("*")):
            facts = path.stat()
            if path.is_file():
                files[str(path)] = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
    return files


@contextmanager
def copy_periodically(own: Path, storage: Storage, every: float) -> Iterator[None]:
    """Store a copy of a folder at regular intervals while the block runs, and at its end."""
    done = threading.Event()

    def copy() -> None:
        while not done.wait(every):
            with suppress(Exception):  # the network may be down; the next copy is complete again
                storage.store(own)

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        storage.store(own)
