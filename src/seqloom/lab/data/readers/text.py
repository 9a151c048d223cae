"""Plain text: one long text, or one example a line; and two files whose lines belong together."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.generated import generated, utf8

SUFFIXES = (".txt", ".text")
SNIFFED = 400  # lines
PIECES, LONGEST = 200, 4096  # a long line is cut into pieces, so that one line alone can be split, too


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Lines with their ends: put together they are the text again. With `lines`, without their ends."""
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    return generated(lambda: _lines(path, options.lines), {"text": pl.String})


def _lines(path: Path, alone: bool) -> Iterator[dict[str, Any]]:
    longest = min(LONGEST, max(LONGEST // PIECES, path.stat().st_size // PIECES))
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            line = utf8(raw, path, number)
            if not alone:
                yield from ({"text": piece} for piece in _cut(line, longest))
            elif line.strip():
                yield {"text": line.rstrip("\r\n")}


def _cut(line: str, longest: int) -> Iterator[str]:
    """Pieces of about this length; behind a space where there is one, so that words stay whole."""
    start = 0
    while len(line) - start > longest:
        end = line.rfind(" ", start, start + longest) + 1
        end = end if end > start else start + longest
        yield line[start:end]
        start = end
    yield line[start:]


def sniff(path: Path) -> str:
    """What a .txt really is: "conll", "tsv" or "text"."""
    with path.open("rb") as file:
        lines = [line.decode("utf-8", "replace").rstrip("\r\n") for line, _ in zip(file, range(SNIFFED), strict=False)]
    full = [line for line in lines[:-1] or lines if line.strip()]
    tabs = {line.count("\t") for line in full}
    fields = {len(line.split("\t") if "\t" in line else line.split(" ")) for line in full}
    if len(full) > 1 and len(full) < len(lines) - 1 and len(fields) == 1 and fields != {1}:
        return "conll"
    return "tsv" if len(full) > 1 and len(tabs) == 1 and tabs != {0} else "text"


def parallel(paths: tuple[Path, Path], names: tuple[str, str]) -> pl.LazyFrame:
    """Line i of one file belongs to line i of the other."""
    return generated(lambda: _pairs(paths, names), dict.fromkeys(names, pl.String))


def _pairs(paths: tuple[Path, Path], names: tuple[str, str]) -> Iterator[dict[str, Any]]:
    with paths[0].open("rb") as one, paths[1].open("rb") as other:
        for number, lines in enumerate(zip_longest(one, other), 1):
            short = [path for path, line in zip(paths, lines, strict=True) if line is None]
            if short:
                longer = next(path for path in paths if path != short[0])
                raise UserError(f"{short[0]}: ends after {number - 1} lines, but {longer} goes on; they must match")
            texts = (utf8(line, p, number).rstrip("\r\n") for line, p in zip(lines, paths, strict=True))
            yield dict(zip(names, texts, strict=True))
