"""A folder of tensors and facts that is there whole or not at all.

    last.new/    being written: its files, each synced, then state.json with a digest of every file
    last/        renamed from last.new/ in one go
    last.old/    the one before, for the moment between two renames

A process may be killed between any two lines of `write`: `find` then gives the new folder or the old
one, whole. Tensors are safetensors, facts are JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from seqloom.lab.files import scratch, sealed
from seqloom.lab.files.sealed import DamagedError

FACTS, FORMAT = "state.json", 1
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A whole one: where it is, its facts, and the files that have been read already."""

    folder: Path
    facts: dict[str, Any]
    read: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def whole(self, *names: str) -> Checkpoint:
        """The same with these files read, or all: from now on nobody can change it."""
        every = names or [file.removesuffix(".safetensors") for file in self.facts["files"]]
        return replace(self, read={name: self.tensors(name) for name in every})

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Those of one file, on the CPU; {} where it has none of that name."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = f"{name}.safetensors"
        if name in self.read or file not in self.facts["files"]:
            return self.read.get(name, {})
        data = (self.folder / file).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.facts["files"][file]:
            raise DamagedError(
                f"{self.folder / file} is damaged: {len(data)} bytes that are not those that were written"
            )
        # a copy of each, aligned in memory as torch aligns what it makes: sums then come out the same
        try:
            return {key: tensor.clone() for key, tensor in load(data).items()}
        except SafetensorError as error:
            raise DamagedError(f"{self.folder / file} is damaged: {error}") from None


def write(place: Path, facts: Mapping[str, Any], **files: Tensors) -> None:
    """Put a checkpoint in `place`; whatever stood there stays until the new one is whole."""
    new, old = _beside(place)
    _settle(place, new, old)
    try:
        _fill(new, facts, files)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    new.rename(place)
    sync(place.parent)
    shutil.rmtree(old, ignore_errors=True)


def recover(place: Path) -> None:
    """Finish what a process that was killed in `write` has begun, and remove what it left. For who holds the run."""
    new, old = _beside(place)
    _settle(place, new, old)
    try:
        read(place)
    except DamagedError:  # the old one may be the better one
        return
    shutil.rmtree(old, ignore_errors=True)


def _settle(place: Path, new: Path, old: Path) -> None:
    """Finish what a process that was killed between the renames has begun."""
    if not place.exists():
        for folder in (new, old):
            try:
                read(folder).folder.rename(place)
                break
            except DamagedError:
                continue
    shutil.rmtree(new, ignore_errors=True)


def _fill(folder: Path, facts: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
    from safetensors.torch import save

    folder.mkdir(parents=True)
    digests = {}
    for name, tensors in files.items():
        if tensors:
            data = save({key: t.detach().cpu().clone().contiguous() for key, t in tensors.items()})
            digests[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
            _put(folder / f"{name}.safetensors", data)
    _put(folder / FACTS, sealed.dumps({**facts, "files": digests}, indent=1))
    sync(folder)


def find(place: Path) -> Checkpoint | None:
    """The checkpoint that belongs in `place`, whole; None where there never was one. Changes nothing."""
    new, old = _beside(place)
    wrong: DamagedError | None = None
    for folder in (place, new, old, place):  # the last look: it may have been renamed meanwhile
        if not folder.is_dir() or (folder == new and place.is_dir()):
            continue
        try:
            return read(folder)
        except DamagedError as error:
            wrong = wrong or (error if folder != new else None)  # a new one may always be half-written
    if wrong is not None:
        raise wrong
    return None


def read(folder: Path) -> Checkpoint:
    """A checkpoint whose files are all there; their contents are looked at when they are read."""
    if not (folder / FACTS).is_file():  # a pipe in its place would be waited for
        raise DamagedError(f"{folder / FACTS} is missing or damaged")
    try:
        facts = sealed.loads((folder / FACTS).read_bytes(), folder / FACTS, FORMAT)
    except OSError:
        raise DamagedError(f"{folder / FACTS} is missing or damaged") from None
    files = facts.get("files")
    if not isinstance(files, dict) or not isinstance(facts.get("step"), int):
        raise DamagedError(f"{folder / FACTS} is damaged: it does not describe a checkpoint; restore it from a copy")
    for file in files:
        if not (folder / file).is_file():
            raise DamagedError(f"{folder / file} is missing")
    return Checkpoint(folder, facts)


def write_file(path: Path, data: bytes) -> None:
    """A single file, whole: under another name, synced, renamed."""
    new = scratch.choose_name(path)
    try:
        _put(new, data)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    new.rename(path)
    sync(path.parent)


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def settle(folder: Path) -> None:
    """Make sure that every file in a folder is on the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync(folder)


def sync(folder: Path) -> None:
    """Make renames in a folder last through a loss of power, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _beside(place: Path) -> tuple[Path, Path]:
    return place.with_name(place.name + ".new"), place.with_name(place.name + ".old")
