"""What a path means: the files behind it, each read once into an Arrow file of the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from seqloom import __version__
from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.paths import files as files_of
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import hub, packed
from seqloom.lab.data.readers.scanned import FACTS, TABLE, Facts, sink, table
from seqloom.lab.data.task import Notes

CHUNK = 8 << 20  # bytes of a table in memory at once


@dataclass(frozen=True)
class Part:
    """One file of the data, as an Arrow file in the cache."""

    label: str  # what a person calls it
    split: str | None
    fingerprint: str
    table: Path
    rows: int


@dataclass(frozen=True)
class Source:
    """All parts of the data, in one order of rows."""

    name: str
    parts: tuple[Part, ...]
    usual: tuple[str, str] | None = None  # input and target, where the format has a convention
    stream: bool = False  # the rows are pieces of one long text

    @property
    def fingerprint(self) -> str:
        return cache.digest(*(f"{p.split} {p.fingerprint}" for p in self.parts))

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def frame(self) -> pl.LazyFrame:
        """All rows. A column that some part lacks is null there."""
        return pl.concat([pl.scan_ipc(part.table) for part in self.parts], how="diagonal_relaxed")

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """The first row's number and some rows at a time, never much memory."""
        frame = self.frame().select(columns)
        size = max(1, CHUNK * self.rows // max(1, sum(p.table.stat().st_size for p in self.parts)))
        for start in range(0, self.rows, size):
            yield start, frame.slice(start, size).collect()

    def columns(self, *names: str) -> pl.DataFrame:
        """Some short columns of all rows, without the pages of the others."""
        return pl.concat([frame for _, frame in self.chunks(names)])

    def place(self, row: int) -> str:
        """Where a row is, in a person's words."""
        for part in self.parts:
            if row < part.rows:
                return f"{part.label}: row {row + 1}"
            row -= part.rows
        raise IndexError(row)


def source(path: Any, options: Reading, notes: Notes) -> Source:
    """Find the files, read those that the cache does not hold, and put them in order."""
    if isinstance(path, str) and path.startswith(hub.PREFIX):
        found = hub.scan(path).items()
        parts = [_cached(f"{path} {split}", split, key, partial(sink, f, Facts()), notes) for split, (key, f) in found]
        name = path.removeprefix(hub.PREFIX)
    elif frames := _frames(path):
        parts = [_framed(split, frame, notes) for split, frame in frames.items()]
        name = "data"
    else:
        files = files_of(path, options, notes)
        parts = [_part(split, some, options, notes) for split, some in files]
        name = packed.bare(Path(path) if isinstance(path, (str, Path)) else files[0][1][0]).stem
    facts = parts[0][1]
    return Source(name, tuple(part for part, _ in parts), facts.usual, facts.stream)


def _frames(path: Any) -> dict[str | None, pl.DataFrame]:
    """split -> frame, where data were given as polars or pandas frames."""
    given: dict[Any, Any] = dict(path) if isinstance(path, Mapping) else {None: path}
    if any(type(frame).__name__ != "DataFrame" for frame in given.values()):
        return {}
    return {k: frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame) for k, frame in given.items()}


def _framed(split: str | None, frame: pl.DataFrame, notes: Notes) -> tuple[Part, Facts]:
    key = cache.digest(__version__, str(frame.schema), frame.write_ipc(None, compression="uncompressed").getvalue())
    label = f"the frame {split!r}" if split else "the frame"
    return _cached(label, split, key, partial(sink, frame.lazy(), Facts()), notes)


def _part(split: str | None, files: tuple[Path, ...], options: Reading, notes: Notes) -> tuple[Part, Facts]:
    key = cache.digest(__version__, *map(cache.fingerprint, files), files[0].name, str((options.header, options.lines)))
    return _cached(" + ".join(map(str, files)), split, key, partial(table, files, options), notes)


def _cached(label: str, split: str | None, key: str, build: Callable[[Path], None], notes: Notes) -> tuple[Part, Facts]:
    place = cache.entry(f"table-{key}", build, notes)
    facts = json.loads((place / FACTS).read_text())
    rows = facts.pop("rows")
    if rows == 0:
        raise UserError(f"{label}: holds no rows")
    usual = tuple(facts["usual"]) if facts["usual"] else None
    return Part(label, split, key, place / TABLE, rows), Facts(usual, facts["stream"])
