"""Users' cells in a comparison: copies of their files, and which of their code is executed.

cells/SHA256/FILE.py    a copy; the name of its folder is its digest

A comparison executes only these copies, and only if their bytes have this digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqloom.cells import lookup
from seqloom.core.errors import UserError
from seqloom.lab.files import checkpoint, trust
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.training.candidates import split_model

FOLDER = "cells"


@dataclass(frozen=True)
class CellFile:
    """The file of a user's cell as it was when the comparison was started."""

    name: str  # without folders
    code: bytes

    @property
    def sha256(self) -> str:
        return trust.digest(self.code)

    def place(self, folder: Path) -> Path:
        """Return the path of the copy in the comparison's folder."""
        return folder / FOLDER / self.sha256 / self.name


CellFiles = Mapping[str, CellFile]  # by the path in the names of the models


def read_files(models: Sequence[str]) -> dict[str, CellFile]:
    """Read the file of every model FILE.py:CLASS, each once."""
    files: dict[str, CellFile] = {}
    for name in models:
        model = split_model(name)
        if model.file is not None and str(model.file) not in files:
            found = lookup.read_source(model.base)
            assert found is not None
            files[str(model.file)] = CellFile(model.file.name, found[1])
    return files


def write_copies(folder: Path, files: CellFiles) -> None:
    """Write the copies to the comparison's folder, which exists."""
    for file in files.values():
        file.place(folder).parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_file(file.place(folder), file.code)


def read_copies(
    folder: Path, models: Sequence[str], digests: Mapping[str, str], record: Path, trusted: bool
) -> dict[str, CellFile]:
    """Read the copies of a comparison that is resumed; each is read once, and its digest is that of these bytes.

    Args:
        digests: the digest of each file, from its record.
        record: the file of the record, for messages.
        trusted: whether the user has allowed the code to be executed.

    Raises:
        UntrustedError: If this user has not trained with a cell on this machine, and `trusted` is False.
        DamagedError: If a copy was changed.
    """
    try:
        names = [model.file for model in map(split_model, models)]
    except UserError as error:
        raise UserError(f"{record}: {error}") from None
    files: dict[str, CellFile] = {}
    for file in filter(None, names):
        digest = digests.get(str(file), "")
        if not re.fullmatch("[0-9a-f]{64}", digest):
            raise DamagedError(f"{record} has no digest of the cell {file}; start a new comparison")
        copy = folder / FOLDER / digest / file.name
        if not copy.is_file():
            raise UserError(f"{folder} needs its copy of the cell {file}, {copy}, which is missing; put it back")
        code = copy.read_bytes()
        if trust.digest(code) != digest:
            raise DamagedError(f"{copy} is damaged: the comparison was started with other content; restore it")
        trust.check(code, copy, folder, trusted)
        files[str(file)] = CellFile(file.name, code)
    return files


def load_copies(folder: Path, models: Sequence[str], files: CellFiles) -> list[str]:
    """Execute the code of cells that the caller trusts; return the models with the copies in place of the files."""
    names = []
    for name in models:
        model = split_model(name)
        if model.file is None:
            names.append(name)
            continue
        file = files[str(model.file)]
        copy = lookup.load_source(file.code, file.place(folder), model.cell)
        names.append(model.rename(copy))
    return names


def load_copy(model: str) -> None:
    """Execute the copy of a cell before a job builds the model; do nothing for a layer by name.

    Raises:
        DamagedError: If the file is not a copy whose digest is the name of its folder.
    """
    split = split_model(model)
    if split.file is None:
        return
    code = split.file.read_bytes()
    if trust.digest(code) != split.file.parent.name:
        raise DamagedError(f"{split.file} is damaged: the comparison was started with other content; restore it")
    lookup.load_source(code, split.file, split.cell)
