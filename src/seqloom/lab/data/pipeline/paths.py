"""Find the files that a path names, and the split of each file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqloom.core.errors import UserError
from seqloom.lab.data.names import SPLITS
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers.audio import has_recordings
from seqloom.lab.data.readers.compression import strip_suffix
from seqloom.lab.data.readers.recordings import names_recordings
from seqloom.lab.data.readers.table import BY_SUFFIX
from seqloom.lab.data.readers.text import find_class_folders
from seqloom.lab.data.task import DataSource, Files, Frame, Notes

NOT_DATA = ("README", "LICENSE", "ORIGIN_README", "_ABOUT")
SplitFiles = list[tuple[str | None, tuple[Path, ...]]]


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
