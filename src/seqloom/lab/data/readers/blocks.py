"""A text file in blocks of whole rows, so that a file of any size takes little memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

BLOCK = 8 << 20  # bytes


def blocks(path: Path, quoted: bool = False, size: int = BLOCK) -> Iterator[bytes]:
    """Blocks that end with a row. `quoted`: a line end between quotes does not end a row."""
    rest = b""
    with path.open("rb") as file:
        while new := file.read(size):
            data = rest + new
            end = data.rfind(b"\n") + 1
            while quoted and end and data.count(b'"', 0, end) % 2:
                end = data.rfind(b"\n", 0, end - 1) + 1
            if end:
                yield data[:end]
            rest = data[end:]
    if rest:
        yield rest
