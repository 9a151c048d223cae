"""A file is there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.lab.files import scratch


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A name to write to, which becomes the file's when all is written; links, pipes and devices stay what they are."""
    if file.is_dir():
        raise UserError(f"{file} is a folder; name a file in it")
    if file.is_relative_to("/dev") or (file.exists() and not file.is_file()):
        yield file
        return
    file = file.resolve()
    work = scratch.choose_name(file)
    try:
        yield work
        os.replace(work, file)
    finally:
        work.unlink(missing_ok=True)
