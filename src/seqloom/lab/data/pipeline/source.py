"""Find the files behind a path and read each of them once into an Arrow file of the cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from seqloom import __version__
from seqloom.core.errors import UserError, require
from seqloom.lab.data.names import HUB_PREFIX
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.paths import find_files
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import compression
from seqloom.lab.data.readers.recordings import find_recordings, names_recordings
from seqloom.lab.data.readers.table import FACTS, TABLE, TableFacts, write_files, write_frame
from seqloom.lab.data.task import DataSource, Notes

CHUNK_BYTES = 8 << 20  # part of a table that is in memory at once


@dataclass(frozen=True)
class Part:
    """One file of the data, as an Arrow file in the cache."""

    label: str  # the name that messages use
    split: str | None
    fingerprint: str
    table: Path
    rows: int
    numbers: tuple[int, ...] | None = None  # indices of the rows in the file, if the part is a sample


@dataclass(frozen=True)
class Source:
    """All parts of the data; their rows are numbered consecutively."""

    name: str
    parts: tuple[Part, ...]
    usual: tuple[str, str] | None = None  # input and target by the format's convention, if it has one
    stream: bool = False  # whether the rows are pieces of one long text

    @property
    def fingerprint(self) -> str:
        return cache.digest(*(f"{p.split} {p.fingerprint}" for p in self.parts))

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    def frame(self) -> pl.LazyFrame:
        """Return all rows. A column that a part lacks is null there."""
        return pl.concat([pl.scan_ipc(part.table) for part in self.parts], how="diagonal_relaxed")

    def chunks(self, columns: Sequence[str]) -> Iterator[tuple[int, pl.DataFrame]]:
        """Yield chunks of about CHUNK_BYTES, each with the number of its first row."""
        frame = self.frame().select(columns)
        size = max(1, CHUNK_BYTES * self.rows // max(1, sum(p.table.stat().st_size for p in self.parts)))
        for start in range(0, self.rows, size):
            yield start, frame.slice(start, size).collect()

    def columns(self, *names: str) -> pl.DataFrame:
        """Return some short columns of all rows without loading the others."""
        return pl.concat([frame for _, frame in self.chunks(names)])

    def place(self, row: int) -> str:
        """Return the file and number of a row for messages."""
        for part in self.parts:
            if row < part.rows:
                return f"{part.label}: row {(row if part.numbers is None else part.numbers[row]) + 1}"
            row -= part.rows
        raise IndexError(row)


def read_source(path: DataSource, options: Reading, notes: Notes) -> Source:
    """Find the data, read files that are not in the cache, and return all parts in order.

    Args:
        path: A path, "hf:name", a frame, a pair of paths, or a dict from splits to paths or frames.
        options: Which parts of a file to read, and how.
        notes: Receives remarks for the user.
    """
    if isinstance(path, str) and path.startswith(HUB_PREFIX):
        parts = [
            _read_cached(f"{path} {split}", split, key, partial(write_frame, frame, TableFacts()), notes)
            for split, (key, frame) in _load_hub(path).items()
        ]
        name = path.removeprefix(HUB_PREFIX)
    elif frames := _collect_frames(path):
        parts = [_read_frame(split, frame, notes) for split, frame in frames.items()]
        name = "data"
    else:
        files = find_files(path, options, notes)
        parts = [_read_files(split, some, options, notes) for split, some in files]
        name = compression.strip_suffix(Path(path) if isinstance(path, (str, Path)) else files[0][1][0]).stem
    facts = parts[0][1]
    return Source(name, tuple(part for part, _ in parts), facts.usual, facts.stream)


def _load_hub(name: str) -> dict[str, tuple[str, pl.LazyFrame]]:
    """Load a data set of the Hugging Face hub: split -> (fingerprint, frame)."""
    datasets = require("datasets", f"{name}: reading from the Hugging Face hub")
    path, _, config = name.removeprefix(HUB_PREFIX).partition(":")
    data: Any = datasets.load_dataset(path, config or None)
    parts = data if isinstance(data, dict) else {"train": data}
    names = {"validation": "valid", "dev": "valid"}
    return {names.get(split, split): (str(part._fingerprint), _name_classes(part)) for split, part in parts.items()}


def _name_classes(part: Any) -> pl.LazyFrame:  # noqa: ANN401  # a Dataset of the optional package datasets
    """Return a part of a hub data set with the names of classes in place of their ids."""
    frame: pl.DataFrame = part.to_polars()
    for name, feature in part.features.items():
        names = getattr(feature, "names", None)
        if names and frame.schema[name].is_integer():
            frame = frame.with_columns(pl.col(name).replace_strict(dict(enumerate(names)), default=None))
    return frame.lazy()


def _collect_frames(path: DataSource) -> dict[str | None, pl.DataFrame]:
    """Return split -> polars frame if `path` is a polars or pandas frame or a dict of them, else {}."""
    frames: dict[Any, Any] = dict(path) if isinstance(path, Mapping) else {None: path}
    if any(type(frame).__name__ != "DataFrame" for frame in frames.values()):
        return {}
    return {k: frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame) for k, frame in frames.items()}


def _read_frame(split: str | None, frame: pl.DataFrame, notes: Notes) -> tuple[Part, TableFacts]:
    key = cache.digest(__version__, str(frame.schema), frame.write_ipc(None, compression="uncompressed").getvalue())
    label = f"the frame {split!r}" if split else "the frame"
    return _read_cached(label, split, key, partial(write_frame, frame.lazy(), TableFacts()), notes)


def _read_files(split: str | None, files: tuple[Path, ...], options: Reading, notes: Notes) -> tuple[Part, TableFacts]:
    sounds = find_recordings(files[0]) if names_recordings(files[0]) else []
    how = str((options.header, options.sheet, options.lines, options.encoding, "titles"))
    key = cache.digest(__version__, *map(cache.fingerprint, (*files, *sounds)), files[0].name, how)
    return _read_cached(" + ".join(map(str, files)), split, key, partial(write_files, files, options), notes)


def _read_cached(
    label: str, split: str | None, key: str, build: Callable[[Path], None], notes: Notes
) -> tuple[Part, TableFacts]:
    place = cache.find_or_build(f"table-{key}", build, notes)
    facts = json.loads((place / FACTS).read_text())
    rows = facts.pop("rows")
    if rows == 0:
        raise UserError(f"{label}: holds no rows")
    usual = tuple(facts["usual"]) if facts["usual"] else None
    titles = tuple(facts["titles"])
    if titles:
        shown = ", ".join(map(repr, titles[:2])) + (", ..." if len(titles) > 2 else "")
        notes.say(f"{label}: left out above the header: {shown}; set header=True if the first line is the header")
    return Part(label, split, key, place / TABLE, rows), TableFacts(usual, facts["stream"], titles)
