"""Which files a path means, and which split each of them is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seqloom.core.errors import UserError
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.readers import folder, packed
from seqloom.lab.data.readers.scanned import BY_SUFFIX
from seqloom.lab.data.task import Notes

SPLITS = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid"}
SPLITS |= {"dev": "valid", "devset": "valid", "trainset": "train", "testset": "test", "test": "test"}
Files = list[tuple[str | None, tuple[Path, ...]]]


def files(path: Any, options: Reading, notes: Notes) -> Files:
    """(split, one file or two parallel ones); the split is None where it must be made."""
    if isinstance(path, Mapping):
        return [(str(split), _pair(value)) for split, value in path.items()]
    if not isinstance(path, (str, Path)):
        return [(None, _pair(path))]
    path = Path(path)
    _check_kind(path)
    if path.is_file():
        if _split(path) == "train":
            _beside(path, notes)
        return [(None, (path,))]
    if path.is_dir():
        return _folder(path, options, notes)
    if path.parent.is_dir():  # a prefix: data/GunPoint for GunPoint_TRAIN.ts and GunPoint_TEST.ts
        pattern = re.compile(re.escape(path.name) + r"[^A-Za-z0-9]")
        found = sorted(p for p in path.parent.iterdir() if pattern.match(p.name) and _is_data(p))
        if found:
            return _given(path, found, notes)
    raise UserError(f"{path}: no such file or folder, and no task of that name")


def _check_kind(path: Path) -> None:
    """Raise for a pipe, a socket or a device, which would be waited for."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path} is a pipe or a device; write what it gives into a file first")


def _beside(path: Path, notes: Notes) -> None:
    """Say it where there is a test set of the same name, and how it would be read too."""
    kin = [p for p in sorted(path.parent.iterdir()) if _split(p) and _is_data(p) and _stem(p) == _stem(path)]
    if any(_split(p) == "test" for p in kin):
        alone = len(kin) == sum(_is_data(p) for p in path.parent.iterdir())
        whole = path.parent if alone or not _stem(path) else path.parent / _stem(path)
        others = ", ".join(p.name for p in kin if p != path)
        notes.say(f"only {path.name} is read; give {whole} to use {others} too")


def _stem(path: Path) -> str:
    """What is left of a name without its split: GunPoint of GunPoint_TRAIN.ts.gz."""
    bare = packed.bare(path).name.rsplit(".", 1)[0]
    return re.sub(rf"[^A-Za-z0-9]*({'|'.join(SPLITS)})$", "", bare, flags=re.IGNORECASE)


def _pair(value: Any) -> tuple[Path, ...]:
    paths = (Path(value),) if isinstance(value, (str, Path)) else tuple(map(Path, value))
    if not 1 <= len(paths) <= 2:
        raise UserError(f"give one file, or two files whose lines belong together, got {len(paths)}")
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: no such file")
        _check_kind(path)
    return paths


def _folder(path: Path, options: Reading, notes: Notes) -> Files:
    inside = sorted(p for p in path.iterdir() if not p.name.startswith("."))
    sides = (*options.input, *options.target)
    if len(sides) == 2:  # train.de and train.en beside each other
        ends = tuple([p for p in inside if packed.bare(p).suffix == f".{side}"] for side in sides)
        stems = [{packed.bare(p).stem: p for p in end} for end in ends]
        both = [stem for stem in stems[0] if stem in stems[1]]
        if both:
            named = _names(path, {stem: stems[0][stem] for stem in both}, notes)
            return [(split, (stems[0][stem], stems[1][stem])) for stem, split in named.items()]
    folders = [p for p in inside if p.is_dir()]
    halves = [p for p in folders if _split(p) and folder.classes(p)]
    if halves:
        return [(_split(half), (half,)) for half in halves]
    if folder.classes(path) or any(p.suffix == ".wav" for p in path.rglob("*.wav")):
        return [(None, (path,))]
    found = [p for p in inside if p.is_file() and _is_data(p)]
    if not found:
        raise UserError(f"{path}: holds no data; files may end in {', '.join(BY_SUFFIX)}, and .gz, .xz, .bz2 or .zst")
    return _given(path, found, notes)


def _given(path: Path, found: list[Path], notes: Notes) -> Files:
    if len(found) == 1:
        return [(None, (found[0],))]
    named = _names(path, {packed.bare(p).stem: p for p in found}, notes)
    by_stem = {packed.bare(p).stem: p for p in found}
    return [(split, (by_stem[stem],)) for stem, split in named.items()]


def _names(path: Path, files: dict[str, Path], notes: Notes) -> dict[str, str | None]:
    """stem -> split, training first. Of several tests the first is "test", the others keep their names."""
    splits = {stem: _split(file) for stem, file in files.items()}
    trains = [stem for stem, split in splits.items() if split == "train"]
    if len(trains) != 1 or None in splits.values():
        odd = trains if len(trains) > 1 else [stem for stem, split in splits.items() if split is None]
        raise UserError(f"{path}: holds several data sets ({', '.join(odd[:8])}); give one file, or one name in it")
    named: dict[str, str | None] = {}
    for stem in sorted(splits, key=lambda s: (("train", "valid", "test").index(splits[s] or ""), s)):
        taken = splits[stem] in named.values()
        named[stem] = stem if taken else splits[stem]
        if taken:
            notes.say(f"{files[stem].name} is the further split {stem!r}")
    return named


def _split(path: Path) -> str | None:
    words = re.split(r"[^a-z]+", packed.bare(path).name.lower())
    return next((SPLITS[word] for word in words if word in SPLITS), None)


def _is_data(path: Path) -> bool:
    plain = path.stem.upper() in ("README", "LICENSE", "ORIGIN_README", "_ABOUT")
    return packed.bare(path).suffix in BY_SUFFIX and not plain
