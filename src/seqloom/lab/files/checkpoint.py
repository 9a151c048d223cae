"""Checkpoints: folders of tensors and facts that are written atomically; weights of a model as named tensors.

    last.new/    being written: its files, each synced, then state.json with a digest of every file
    last/        renamed from last.new/
    last.old/    the previous one, between two renames

If a process is killed anywhere in `write`, `find` returns either the new folder or the old one, complete.
Tensors are stored as safetensors, facts as JSON; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.files import scratch, sealed
from seqloom.lab.files.sealed import DamagedError

FACTS, FORMAT = "state.json", 1
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint: its folder, its facts, and the files read so far."""

    folder: Path
    facts: dict[str, Any]
    read: dict[str, dict[str, Tensor]] = field(default_factory=dict)

    def load(self, *names: str) -> Checkpoint:
        """Return a copy with the named files, or all, in memory, where no other process can change them."""
        every = names or [file.removesuffix(".safetensors") for file in self.facts["files"]]
        return replace(self, read={name: self.tensors(name) for name in every})

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one file, on the CPU; {} if there is no such file."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = f"{name}.safetensors"
        if name in self.read or file not in self.facts["files"]:
            return self.read.get(name, {})
        data = (self.folder / file).read_bytes()
        if hashlib.sha256(data).hexdigest() != self.facts["files"][file]:
            raise DamagedError(f"{self.folder / file} is damaged: its {len(data)} bytes have changed")
        # copies with torch's memory alignment, so that sums are bitwise equal to those before saving
        try:
            return {key: tensor.clone() for key, tensor in load(data).items()}
        except SafetensorError as error:
            raise DamagedError(f"{self.folder / file} is damaged: {error}") from None


def write(place: Path, facts: Mapping[str, Any], **files: Tensors) -> None:
    """Write a checkpoint to `place`; the previous one stays until the new one is complete."""
    new, old = _name_siblings(place)
    _finish_renames(place, new, old)
    try:
        _write_files(new, facts, files)
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
    """Complete or remove what a process left when it was killed in `write`. The caller must hold the run's lock."""
    new, old = _name_siblings(place)
    _finish_renames(place, new, old)
    try:
        read(place)
    except DamagedError:  # keep the old one, which may be intact
        return
    shutil.rmtree(old, ignore_errors=True)


def _finish_renames(place: Path, new: Path, old: Path) -> None:
    """Complete the renames of a process that was killed between them."""
    if not place.exists():
        for folder in (new, old):
            try:
                read(folder).folder.rename(place)
                break
            except DamagedError:
                continue
    shutil.rmtree(new, ignore_errors=True)


def _write_files(folder: Path, facts: Mapping[str, Any], files: Mapping[str, Tensors]) -> None:
    from safetensors.torch import save

    folder.mkdir(parents=True)
    digests = {}
    for name, tensors in files.items():
        if tensors:
            data = save({key: t.detach().cpu().clone().contiguous() for key, t in tensors.items()})
            digests[f"{name}.safetensors"] = hashlib.sha256(data).hexdigest()
            _write_synced(folder / f"{name}.safetensors", data)
    _write_synced(folder / FACTS, sealed.dumps({**facts, "files": digests}, indent=1))
    sync(folder)


def find(place: Path) -> Checkpoint | None:
    """Return the checkpoint of `place`, or None if none was written. Changes nothing on disk.

    Raises:
        DamagedError: If there are only damaged ones.
    """
    new, old = _name_siblings(place)
    damage: DamagedError | None = None
    for folder in (place, new, old, place):  # `place` again: it may have been renamed meanwhile
        if not folder.is_dir() or (folder == new and place.is_dir()):
            continue
        try:
            return read(folder)
        except DamagedError as error:
            damage = damage or (error if folder != new else None)  # a new one may be incomplete
    if damage is not None:
        raise damage
    return None


def read(folder: Path) -> Checkpoint:
    """Open a checkpoint and check that all its files exist; their content is checked when they are read."""
    if not (folder / FACTS).is_file():  # reading a pipe would block
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
    """Write a single file atomically: under a temporary name, synced, renamed."""
    new = scratch.choose_name(path)
    try:
        _write_synced(new, data)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    new.rename(path)
    sync(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_files(folder: Path) -> None:
    """Flush every file in a folder to disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    sync(folder)


def sync(folder: Path) -> None:
    """Flush the renames in a folder to disk, so that they survive a power failure (POSIX only)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _name_siblings(place: Path) -> tuple[Path, Path]:
    return place.with_name(place.name + ".new"), place.with_name(place.name + ".old")


def check_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise a UserError that names the first weight with NaN or infinity."""
    for name, tensor in tensors.items():
        wrong = int((~tensor.isfinite()).sum()) if tensor.is_floating_point() else 0
        if wrong:
            raise UserError(
                f"weight {name!r} has {wrong:,} of {tensor.numel():,} values that are NaN or infinite: the training "
                "diverged, or the file was changed; train again with a smaller learning rate, or restore it from a copy"
            )


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights by name; tied weights appear once, under their first name."""
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            weights[name] = tensor.detach()
    return weights


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy weights into a model; names and shapes must match exactly."""
    check_weights(model, tensors)
    model.load_state_dict(dict(tensors), strict=False)  # not strict because of the further names of tied weights


def check_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise a UserError if names or shapes of tensors differ from those of the model's weights."""
    own = weights_of(model)
    if own.keys() != tensors.keys():
        odd = sorted(own.keys() ^ tensors.keys())[0]
        raise UserError(f"the weights do not fit this model: {odd!r} is in only one of the two")
    for name, w in own.items():
        if w.shape != tensors[name].shape:
            stored, own_shape = tuple(tensors[name].shape), tuple(w.shape)
            raise UserError(f"the weights do not fit this model: {name!r} is {stored} in the file, not {own_shape}")
