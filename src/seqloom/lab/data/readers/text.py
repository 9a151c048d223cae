"""Plain text: one long text, one example per line, parallel files, or folders of texts by class."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.frames import decode_utf8, read_lines, scan_rows

SUFFIXES = (".txt", ".text")
CLASS_SUFFIX = ".txt"  # suffix of the texts in class folders
SNIFFED_LINES = 400  # lines from which the form of a .txt file is guessed
MIN_PIECES, MAX_PIECE = 200, 4096  # long lines are cut into pieces, so that even a single line can be split


def scan(path: Path, options: Reading) -> pl.LazyFrame:
    """Scan lines of a file with their ends (with `lines`, without), or the texts of a folder of class folders."""
    if path.is_dir():
        return scan_rows(lambda: _read_classes(path), {"text": pl.String, "label": pl.String, "file": pl.String})
    if path.stat().st_size == 0:
        raise UserError(f"{path}: the file is empty")
    return scan_rows(lambda: _read_lines(path, options.lines), {"text": pl.String})


def find_class_folders(path: Path) -> list[Path]:
    """Find the folders below this one that hold texts; the name of each is a label."""
    return sorted(p for p in path.iterdir() if p.is_dir() and any(f.suffix == CLASS_SUFFIX for f in p.iterdir()))


def _read_classes(path: Path) -> Iterator[dict[str, Any]]:
    for label in find_class_folders(path):
        for file in sorted(f for f in label.iterdir() if f.suffix == CLASS_SUFFIX):
            yield {"text": decode_utf8(file.read_bytes(), file), "label": label.name, "file": file.name}


def _read_lines(path: Path, separate: bool) -> Iterator[dict[str, Any]]:
    """Yield pieces of lines that concatenate to the text; with `separate`, each line that is not blank."""
    longest = min(MAX_PIECE, max(MAX_PIECE // MIN_PIECES, path.stat().st_size // MIN_PIECES))
    for _, line in read_lines(path):
        if not separate:
            yield from ({"text": piece} for piece in _cut_line(line, longest))
        elif line.strip():
            yield {"text": line.rstrip("\r\n")}


def _cut_line(line: str, longest: int) -> Iterator[str]:
    """Yield pieces of at most `longest` characters, cut after a space if possible so that words stay whole."""
    start = 0
    while len(line) - start > longest:
        end = line.rfind(" ", start, start + longest) + 1
        end = end if end > start else start + longest
        yield line[start:end]
        start = end
    yield line[start:]


def guess_form(path: Path) -> str:
    """Guess the form of a .txt file: "conll", "tsv" or "text"."""
    with path.open("rb") as file:
        raw = [line for line, _ in zip(file, range(SNIFFED_LINES), strict=False)]
    lines = [line.decode("utf-8", "replace").rstrip("\r\n") for line in raw]
    full = [line for line in lines[:-1] or lines if line.strip()]
    tabs = {line.count("\t") for line in full}
    fields = {len(line.split("\t") if "\t" in line else line.split(" ")) for line in full}
    if len(full) > 1 and len(full) < len(lines) - 1 and len(fields) == 1 and fields != {1}:
        return "conll"
    return "tsv" if len(full) > 1 and len(tabs) == 1 and tabs != {0} else "text"


def scan_parallel(paths: tuple[Path, Path], names: tuple[str, str]) -> pl.LazyFrame:
    """Scan two files as two columns; line i of one belongs to line i of the other."""
    return scan_rows(lambda: _read_pairs(paths, names), dict.fromkeys(names, pl.String))


def _read_pairs(paths: tuple[Path, Path], names: tuple[str, str]) -> Iterator[dict[str, Any]]:
    with paths[0].open("rb") as one, paths[1].open("rb") as other:
        for number, lines in enumerate(zip_longest(one, other), 1):
            short = [path for path, line in zip(paths, lines, strict=True) if line is None]
            if short:
                longer = next(path for path in paths if path != short[0])
                raise UserError(
                    f"{short[0]}: ends after {count(number - 1, 'line')}, but {longer} has more; they must match"
                )
            texts = (decode_utf8(line, p, number).rstrip("\r\n") for line, p in zip(lines, paths, strict=True))
            yield dict(zip(names, texts, strict=True))
