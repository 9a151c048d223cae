"""A file is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A name to write to, which becomes the file's when all is written."""
    work = file.with_name(f".{os.getpid()}-{file.name}")
    try:
        yield work
        os.replace(work, file)
    finally:
        work.unlink(missing_ok=True)
