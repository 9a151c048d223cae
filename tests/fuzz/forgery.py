"""Changes of a folder as a person makes them who knows its format: digests are made right afterwards.

A witness shows whether anything was executed: every piece of code that a change plants creates a file. A folder outside
shows whether anything was written through a link.
"""

from __future__ import annotations

import copy
import json
import os
import py_compile
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fuzz.mutation import mutate
from seqloom.core.errors import UserError
from seqloom.lab.files import sealed
from seqloom.lab.files.trust import digest, remember
from witness import CELL, QUIET_CELL, WITNESS

EVIL = CELL
GOOD = QUIET_CELL  # the user trusts this text
NUMBERS = (0, -1, 1, 3, 65536, 2**31, 2**63, 10**30, -(10**30), 1.5, 1e308, float("nan"), float("inf"))
STRANGE = (
    None,
    True,
    False,
    *NUMBERS,
    "",
    "x",
    "\u0000",
    "9" * 5000,
    "../..",
    "/dev/zero",
    "hf:x",
    [],
    {},
    [[]],
    {"": {}},
)
WHOLE = 10**18  # the time of change of files that are as they were copied, in ns: every write sets another one
SIBLINGS = ("torch.py", "numpy.py", "seqloom.py", "helper.py", "__init__.py", "cell.pyc", "conftest.py")


class Place:
    """A work folder with a witness and a folder outside of those that are changed."""

    def __init__(self, work: Path) -> None:
        self.witness, self.outside = work / "witness", work / "outside"
        os.environ[WITNESS] = str(self.witness)
        self.witness.unlink(missing_ok=True)
        shutil.rmtree(self.outside, ignore_errors=True)
        (self.outside / "letters").mkdir(parents=True)
        (self.outside / "letter").write_text("dear reader")
        (self.outside / "letters" / "one").write_text("yours")
        (self.outside / "evil.py").write_text(EVIL)
        self.whole = self.read()

    def read(self) -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in sorted(self.outside.rglob("*")) if file.is_file()}

    def check(self) -> None:
        """Raise an AssertionError if code was executed, or anything outside was changed."""
        assert not self.witness.exists(), "planted code was executed"
        assert self.read() == self.whole, "a file outside of the folder was changed"


def write_cell(work: Path) -> Path:
    """Write the user's cell, whose text is trusted, and return its file."""
    file = work / "mine.py"
    file.write_text(GOOD)
    remember(GOOD.encode())
    return file


@cache
def compile_evil() -> bytes:
    """Return bytecode that Python executes without looking at the source beside it."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "evil.py", Path(folder) / "evil.pyc"
        source.write_text(EVIL)
        py_compile.compile(
            str(source), str(target), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
        )
        return target.read_bytes()


class Copy:
    """A copy of a folder that is made whole again after each case: what did not change is not copied again.

    Args:
        whole: The folder to copy.
        folder: The copy. Whatever else is in its parent is removed.
    """

    def __init__(self, whole: Path, folder: Path) -> None:
        self.whole, self.folder = whole, folder
        paths = sorted(whole.rglob("*"))
        self.files = {str(p.relative_to(whole)): p.read_bytes() for p in paths if not p.is_dir()}
        self.folders = [str(p.relative_to(whole)) for p in paths if p.is_dir()]  # outer ones first
        self.copied: dict[str, tuple[int, ...]] = {}  # what the system says of the files of the copy

    def restore(self) -> Path:
        """Make the copy whole and return it."""
        names = {*self.files, *self.folders}
        parent = self.folder.parent
        for path in [p for p in (parent.iterdir() if parent.is_dir() else ()) if p != self.folder]:
            _remove(path)
        self._remove_others(self.folder, "", names)
        for name in ("", *self.folders):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            file = self.folder / name
            if name not in self.copied or not file.exists():
                file.write_bytes(content)
                os.utime(file, ns=(WHOLE, WHOLE))
                self.copied[name] = _describe(file.stat())
        return self.folder

    def _remove_others(self, path: Path, name: str, names: set[str]) -> None:
        """Remove what is not as it was copied."""
        if path.is_symlink() or not path.is_dir():
            if path.is_symlink() or path.exists():
                _remove(path)
            return
        path.chmod(0o755)
        for entry in list(os.scandir(path)):
            inner = f"{name}/{entry.name}" if name else entry.name
            if inner in self.files:
                if _describe(entry.stat(follow_symlinks=False)) != self.copied.get(inner):
                    self.copied.pop(inner, None)
                    _remove(Path(entry.path))
            elif inner in names and entry.is_dir(follow_symlinks=False):
                self._remove_others(Path(entry.path), inner, names)
            else:
                _remove(Path(entry.path))


def _describe(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_nlink


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def attempt(use: Callable[[], Any], name: str) -> str:
    """Use a folder; return "used" or "refused". What is raised otherwise is a bug."""
    try:
        use()
    except UserError as error:
        message = str(error)
        assert "\n" not in message, message
        assert len(message) < 2000, f"a message of {len(message)} characters"
        assert name in message or "data" in message or "task" in message or "option" in message, message
        return "refused"
    return "used"


def forge(draw: random.Random, folder: Path, place: Place) -> list[str]:
    """Make one to three changes in a folder; return notes of them."""
    notes = []
    for _ in range(draw.choice((1, 1, 2, 3))):
        change = draw.choice(
            (_change_bytes, *[_change_record] * 4, *[_name_model] * 4, _link, _poison, _plant, _swap_cell)
        )
        with suppress(OSError, IndexError, AttributeError, TypeError):  # an earlier change took its file or record away
            notes.append(f"{change.__name__}: {change(draw, folder, place)}")
    for name in SIBLINGS[: draw.choice((0, 0, len(SIBLINGS)))]:
        with suppress(OSError):
            (folder / name).write_text(EVIL)
    place.whole = place.read()  # the changes themselves may have gone through a link
    return notes


def _files(folder: Path, suffix: str = "") -> list[Path]:
    return [f for f in sorted(folder.rglob(f"*{suffix}")) if f.is_file() and not f.is_symlink()]


def _change_bytes(draw: random.Random, folder: Path, _: Place) -> str:
    file = draw.choice(_files(folder))
    file.write_bytes(mutate(draw, file.read_bytes()))
    return file.name


def read_document(file: Path) -> Any:
    """Return the JSON document of a file without its digest; {} if it is none."""
    try:
        document = json.loads(file.read_bytes())
    except ValueError:
        return {}
    return document


def write_document(file: Path, document: Any) -> None:
    """Write a JSON document, with a valid digest if it had one."""
    if isinstance(document, dict) and sealed.KEY in document:
        document = {key: value for key, value in document.items() if key != sealed.KEY}
        file.write_bytes(sealed.dumps(document))
    else:
        file.write_text(json.dumps(document))


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [p for key, v in inner for p in _list_paths(v, (*path, key))]


def _change_record(draw: random.Random, folder: Path, place: Place) -> str:
    file = draw.choice(_files(folder, ".json"))
    document = copy.deepcopy(read_document(file))
    *way, last = draw.choice([p for p in _list_paths(document) if p[-1] != sealed.KEY])
    at = document
    for key in way:
        at = at[key]
    kind = draw.random()
    if kind < 0.15:
        del at[last]
    elif kind < 0.3 and isinstance(at, dict):
        at[draw.choice(("odd", "path_or_name", "self", "folder", "trust"))] = draw.choice(STRANGE)
    else:
        at[last] = draw.choice((*STRANGE, str(place.outside / "letter"), f"{place.outside}/evil.py:Mine"))
    write_document(file, document)
    return f"{file.relative_to(folder)} {(*way, last)}"


def model_names(draw: random.Random, folder: Path, place: Place) -> str:
    """Return a name of a model that two programs might understand differently."""
    evil, near = str(place.outside / "evil.py"), folder / "cell.py"
    odd = folder / "a.py:d"
    with suppress(OSError):
        odd.mkdir(exist_ok=True)
        for name in ("evil.pyc", "evil.py", "evil.so", "evil"):
            (odd / name).write_text(EVIL)
        (folder / "a.py").write_text(GOOD)
        (folder / "evil.pyc").write_bytes(compile_evil())
    return draw.choice(
        (
            f"{folder}/a.py:d/evil.pyc:Mine",
            f"bi_{folder}/a.py:d/evil.py:Mine",
            f"{folder}/a.py:d/evil:Mine:2",
            f"{evil}:Mine",
            f"bi_{evil}:Mine:2",
            f"{folder}/../outside/evil.py:Mine",
            f"{near}:Mine",
            f"{folder}/evil.pyc:Mine",
            f"{evil}\u0000.py:Mine",
            f"{evil}:Mine\n{near}:Mine",
            f"{evil}: Mine",
            f"gru,{evil}:Mine",
            ".py:Mine",
            "a.py:",
            "os:system",
            "bi_bi_gru",
            "gru:2:2",
            "gru:99999999999",
        )
    )


def _name_model(draw: random.Random, folder: Path, place: Place) -> str:
    name = model_names(draw, folder, place)
    files = [f for f in _files(folder, ".json") if f.name in ("run.json", "compare.json", "config.json", "plan.json")]
    file = draw.choice(files)
    document = read_document(file)
    code = draw.choice((EVIL, GOOD))
    settings = document.get("settings", {})
    if "models" in settings:
        settings["models"] = draw.choice(([name], ["rnn", name], name))
        cell = name.removeprefix("bi_").rpartition(":")[0]
        document["cells"] = {
            **document.get("cells", {}),
            cell: draw.choice((digest(code.encode()), "../../outside", "")),
        }
        inside = folder / "cells" / digest(code.encode()) / Path(cell).name.replace("\u0000", "")
        with suppress(OSError):
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_text(draw.choice((EVIL, code)))
    elif settings:
        settings["model"] = name
    else:
        document.setdefault("plan", {})["models"] = [name]
    if file.name == "run.json":
        document["cell"] = {"file": "x", "sha256": digest(code.encode())}
        (file.parent / "cell.py").write_text(draw.choice((EVIL, code)))
    write_document(file, document)
    return f"{file.relative_to(folder)} {name!r}"


def _link(draw: random.Random, folder: Path, place: Place) -> str:
    path = draw.choice(sorted(folder.rglob("*")))
    target = draw.choice((place.outside, place.outside / "letter", place.outside / "evil.py", Path("/dev/zero"), path))
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    path.symlink_to(target)
    return f"{path.relative_to(folder)} -> {target}"


def _poison(draw: random.Random, folder: Path, _: Place) -> str:
    """Put NaN into weights, or change their shape, type or name; their digest is made right."""
    file = draw.choice(_files(folder, ".safetensors"))
    try:
        tensors = load(file.read_bytes())
    except SafetensorError:  # an earlier change of this case
        return "nothing"
    name = draw.choice(sorted(tensors))
    tensor, kind = tensors[name], draw.choice(("nan", "nan", "inf", "shape", "type", "name"))
    if kind in ("nan", "inf"):
        if not tensor.is_floating_point() or not tensor.numel():
            return "nothing"
        tensor.view(-1)[draw.randrange(tensor.numel())] = float(kind)
    elif kind == "shape":
        tensors[name] = tensor.new_zeros(*tensor.shape, 2)
    elif kind == "type":
        tensors[name] = tensor.to(draw.choice((torch.int64, torch.float64, torch.bool, torch.float16)))
    else:
        tensors["../" + name] = tensors.pop(name)
    data = save(tensors)
    file.write_bytes(data)
    state = file.parent / "state.json"
    if state.is_file():
        document = read_document(state)
        document.get("files", {})[file.name] = digest(data)
        write_document(state, document)
    return f"{file.relative_to(folder)} {name} {kind}"


def _plant(draw: random.Random, folder: Path, _: Place) -> str:
    """Put bytecode, modules and packages beside what is read."""
    for parent in {file.parent for file in _files(folder)}:
        cached = parent / "__pycache__"
        cached.mkdir(exist_ok=True)
        for name in ("cell", "mine", "a"):
            (cached / f"{name}.{sys.implementation.cache_tag}.pyc").write_bytes(compile_evil())
        (parent / "mine").mkdir(exist_ok=True)
        (parent / "mine" / "__init__.py").write_text(EVIL)
    return "bytecode"


def _swap_cell(draw: random.Random, folder: Path, _: Place) -> str:
    """Put other code in place of a cell's copy, with its digest in the record or without."""
    file = draw.choice(_files(folder, ".py"))
    code = draw.choice((EVIL, GOOD, "raise SystemExit(3)", "\u0000", EVIL + "\nimport helper\n")).encode()
    file.write_bytes(code)
    record = file.parent / "run.json"
    if draw.random() < 0.7 and record.is_file():
        document = read_document(record)
        document["cell"] = {"file": "x", "sha256": digest(code)}
        write_document(record, document)
    return f"{file.relative_to(folder)} {code[:20]!r}"
