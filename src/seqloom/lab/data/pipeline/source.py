"""Find the files behind a path and read each of them once into an Arrow file of the cache."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from seqloom import __version__
from seqloom.core.errors import UserError, require
from seqloom.lab.data.names import HUB_PREFIX, SPLITS
from seqloom.lab.data.pipeline import cache
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import compression
from seqloom.lab.data.readers.audio import has_recordings
from seqloom.lab.data.readers.compression import strip_suffix
from seqloom.lab.data.readers.recordings import find_recordings, names_recordings
from seqloom.lab.data.readers.table import BY_SUFFIX, FACTS, TABLE, TableFacts, write_files, write_frame
from seqloom.lab.data.readers.text import find_class_folders
from seqloom.lab.data.task import DataSource, Files, Frame, Notes

CHUNK_BYTES = 8 << 20  # part of a table that is in memory at once
NOT_DATA = ("README", "LICENSE", "ORIGIN_README", "_ABOUT")
SplitFiles = list[tuple[str | None, tuple[Path, ...]]]


@dataclass(frozen=True)
class SourcePart:
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
    parts: tuple[SourcePart, ...]
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


def _read_frame(split: str | None, frame: pl.DataFrame, notes: Notes) -> tuple[SourcePart, TableFacts]:
    key = cache.digest(__version__, str(frame.schema), frame.write_ipc(None, compression="uncompressed").getvalue())
    label = f"the frame {split!r}" if split else "the frame"
    return _read_cached(label, split, key, partial(write_frame, frame.lazy(), TableFacts()), notes)


def _read_files(
    split: str | None, files: tuple[Path, ...], options: Reading, notes: Notes
) -> tuple[SourcePart, TableFacts]:
    sounds = find_recordings(files[0]) if names_recordings(files[0]) else []
    how = str((options.header, options.sheet, options.lines, options.encoding, "titles"))
    key = cache.digest(__version__, *map(cache.fingerprint, (*files, *sounds)), files[0].name, how)
    return _read_cached(" + ".join(map(str, files)), split, key, partial(write_files, files, options), notes)


def _read_cached(
    label: str, split: str | None, key: str, build: Callable[[Path], None], notes: Notes
) -> tuple[SourcePart, TableFacts]:
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
    return SourcePart(label, split, key, place / TABLE, rows), TableFacts(usual, facts["stream"], titles)


def find_files(path: DataSource, options: Reading, notes: Notes) -> SplitFiles:
    """Find the files of a path, a pair of paths, or a dict from splits to paths.

    Returns:
        (split, one file or two parallel files) for each part; the split is None if the rows are still to be split.
    """
    if isinstance(path, Mapping):
        return [(str(split), _check_pair(value)) for split, value in path.items()]
    if not isinstance(path, (str, Path)):
        return [(None, _check_pair(path))]
    path = Path(path)
    _check_regular(path)
    if path.is_file():
        if _guess_split(path) == "train":
            _mention_test_files(path, notes)
        return [(None, (path,))]
    if path.is_dir():
        return _find_in_folder(path, options, notes)
    if path.parent.is_dir():  # a prefix: data/GunPoint for GunPoint_TRAIN.ts and GunPoint_TEST.ts
        pattern = re.compile(re.escape(path.name) + r"[^A-Za-z0-9]")
        files = sorted(p for p in path.parent.iterdir() if pattern.match(p.name) and _is_data(p))
        if files:
            return _assign_splits(path, files, notes)
    raise UserError(f"{path}: no such file or folder, and no task of that name")


def _check_regular(path: Path) -> None:
    """Raise an error for a pipe, a socket or a device, which reading would wait for."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a pipe or a device; write its content to a file first")


def _mention_test_files(path: Path, notes: Notes) -> None:
    """Add a note about how to read both files if a test file belongs to a training file."""
    related = [p for p in sorted(path.parent.iterdir()) if _guess_split(p) and _is_data(p) and _stem(p) == _stem(path)]
    if any(_guess_split(p) == "test" for p in related):
        is_alone = len(related) == sum(_is_data(p) for p in path.parent.iterdir())
        whole = path.parent if is_alone or not _stem(path) else path.parent / _stem(path)
        others = ", ".join(p.name for p in related if p != path)
        notes.say(f"only {path.name} is read; give {whole} to use {others} too")


def _stem(path: Path) -> str:
    """Return a file's name without its split and suffixes: GunPoint for GunPoint_TRAIN.ts.gz."""
    name = strip_suffix(path).name.rsplit(".", 1)[0]
    return re.sub(rf"[^A-Za-z0-9]*({'|'.join(SPLITS)})$", "", name, flags=re.IGNORECASE)


def _check_pair(value: Files | Frame) -> tuple[Path, ...]:
    if not isinstance(value, (str, Path, Sequence)):
        kind = type(value).__name__
        raise UserError(f"give a file, two files whose lines belong together, or frames for all splits, got a {kind}")
    paths = (Path(value),) if isinstance(value, (str, Path)) else tuple(map(Path, value))
    if not 1 <= len(paths) <= 2:
        raise UserError(f"give one file, or two files whose lines belong together, got {len(paths)}")
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file")
        _check_regular(path)
    return paths


def _find_in_folder(path: Path, options: Reading, notes: Notes) -> SplitFiles:
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    languages = (*options.input, *options.target)
    if len(languages) == 2:  # pairs such as train.de and train.en
        stems = [{strip_suffix(p).stem: p for p in inside if strip_suffix(p).suffix == f".{end}"} for end in languages]
        both = [stem for stem in stems[0] if stem in stems[1]]
        if both:
            splits = _name_splits(path, {stem: stems[0][stem] for stem in both}, notes)
            return [(split, (stems[0][stem], stems[1][stem])) for stem, split in splits.items()]
    parts = [p for p in inside if p.is_dir() and _guess_split(p) and find_class_folders(p)]
    if parts:
        return [(_guess_split(part), (part,)) for part in parts]
    if tables := [p for p in inside if names_recordings(p)]:
        return _assign_splits(path, tables, notes)
    if find_class_folders(path) or has_recordings(path):
        return [(None, (path,))]
    files = [p for p in inside if p.is_file() and _is_data(p)]
    if not files:
        raise UserError(
            f"{path}: holds no data; files may end in {', '.join(BY_SUFFIX)}, and .gz, .xz, .bz2, .zst or .zip"
        )
    return _assign_splits(path, files, notes)


def _assign_splits(path: Path, files: list[Path], notes: Notes) -> SplitFiles:
    if len(files) == 1:
        return [(None, (files[0],))]
    by_stem = {strip_suffix(p).stem: p for p in files}
    return [(split, (by_stem[stem],)) for stem, split in _name_splits(path, by_stem, notes).items()]


def _name_splits(path: Path, files: dict[str, Path], notes: Notes) -> dict[str, str | None]:
    """Return stem -> split, training first. The first of several test files is "test", the others keep their names."""
    splits = {stem: _guess_split(file) for stem, file in files.items()}
    trains = [stem for stem, split in splits.items() if split == "train"]
    if len(trains) != 1 or None in splits.values():
        odd = trains if len(trains) > 1 else [stem for stem, split in splits.items() if split is None]
        raise UserError(f"{path}: holds several data sets ({', '.join(odd[:8])}); give one file, or one name in it")
    names: dict[str, str | None] = {}
    for stem in sorted(splits, key=lambda s: (("train", "valid", "test").index(splits[s] or ""), s)):
        is_further = splits[stem] in names.values()
        names[stem] = stem if is_further else splits[stem]
        if is_further:
            notes.say(f"{files[stem].name} is the additional split {stem!r}")
    return names


def _guess_split(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", strip_suffix(path).name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _is_data(path: Path) -> bool:
    return (strip_suffix(path).suffix in BY_SUFFIX or path.suffix == ".zip") and path.stem.upper() not in NOT_DATA
