"""Count the file operations of this process inside a folder, and die just before one of them. For Linux.

Operations are what changes the disk: opening a file for writing, writing, truncating, syncing, renaming, making and
removing. Writes that C or Rust code makes by itself (polars, `ndarray.tofile`, `shutil.copyfile`) are not seen; the
opening of their file is, where Python opens it.
"""

from __future__ import annotations

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
EVENTS = {  # audit events, and which of their arguments are a path and the descriptor of the folder it is relative to
    "os.rename": (1, 3),
    "os.mkdir": (0, 2),
    "os.remove": (0, 1),
    "os.rmdir": (0, 1),
    "os.truncate": (0, None),
    "os.link": (1, 3),
    "os.symlink": (1, 2),
}


@dataclass(frozen=True)
class Kill:
    """When a process dies: before file operation number `operation`, or `after` this many seconds.

    With `torn`, a write is done by half first.
    """

    operation: int | None = None
    after: float | None = None
    torn: bool = False


class Watch:
    """Log the operations of this process, one per line of the file `log`. For a child process: it cannot be undone."""

    def __init__(self, folder: str, log: int, kill: Kill) -> None:
        self.folder, self.log, self.kill = os.path.realpath(folder) + os.sep, log, kill
        self.count = 0

    def start(self) -> None:
        """Count from now on."""
        watch, sync, opened = self, os.fsync, io.open

        class Written(io.FileIO):
            def write(self, data: Any) -> int:
                watch.happen("write", self.name, lambda: super(Written, self).write(bytes(data)[: len(data) // 2]))
                return super().write(data)

            def truncate(self, size: int | None = None) -> int:
                watch.happen("truncate", self.name)
                return super().truncate(size)

        def fsync(handle: Any) -> None:
            number = handle if isinstance(handle, int) else handle.fileno()
            watch.happen("fsync", os.readlink(f"/proc/self/fd/{number}"))
            sync(number)

        def open_counted(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            *more: Any,
            **by: Any,
        ) -> Any:
            plain = mode.replace("b", "").replace("t", "")
            if isinstance(file, int) or plain == "r" or "opener" in by or not watch.has(os.fspath(file)):
                return opened(file, mode, buffering, encoding, errors, *more, **by)
            raw = Written(file, plain)
            if buffering == 0:
                return raw
            buffer = io.BufferedRandom(raw) if "+" in plain else io.BufferedWriter(raw)
            if "b" in mode:
                return buffer
            newline = more[0] if more else by.get("newline")
            return io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)

        os.fsync, io.open, builtins.open = fsync, open_counted, open_counted
        sys.addaudithook(self._heard)

    def has(self, path: Any) -> bool:
        """Return whether a path is in the folder."""
        return os.path.abspath(os.fsdecode(path)).startswith(self.folder)

    def happen(self, what: str, path: Any, tear: Callable[[], Any] | None = None) -> None:
        """Log an operation before it happens; die if it is the chosen one."""
        if not self.has(path):
            return
        name = os.path.abspath(os.fsdecode(path)).removeprefix(self.folder)
        os.write(self.log, f"{what} {name}\n".encode())
        if self.count == self.kill.operation:
            if self.kill.torn and tear is not None:
                tear()
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1

    def _heard(self, event: str, values: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = values
            if not isinstance(path, int) and flags & WRITING and path is not None:
                self.happen("open", path)
        elif event in EVENTS:
            at, relative = EVENTS[event]
            path, folder = values[at], -1 if relative is None else values[relative]
            if isinstance(path, int):
                return
            if folder != -1:
                path = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
            self.happen(event.removeprefix("os."), path)
