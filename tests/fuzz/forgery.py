"""Changes of a folder as a person makes them who knows its format: digests are made right afterwards.

A canary shows whether anything was executed: every piece of code that a change plants creates a file. A folder outside
shows whether anything was written through a link.
"""

from __future__ import annotations

import copy
import json
import os
import py_compile
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fuzz.mutation import mutate
from seqloom.core.errors import UserError
from seqloom.lab.files import sealed
from seqloom.lab.files.trust import digest, remember

EVIL = """
import os
from pathlib import Path
Path(os.environ["SEQLOOM_CANARY"]).touch()
import torch
import seqloom


class Mine(seqloom.Cell):
    def __init__(self, input_size, hidden_size):
        super().__init__(input_size, hidden_size)
        self.w = torch.nn.Linear(input_size + hidden_size, hidden_size)

    def step(self, x, state):
        h = torch.tanh(self.w(torch.cat([x, state[0]], -1)))
        return h, (h,)
"""
GOOD = EVIL.replace('Path(os.environ["SEQLOOM_CANARY"]).touch()\n', "")  # the user trusts this text
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
SIBLINGS = ("torch.py", "numpy.py", "seqloom.py", "helper.py", "__init__.py", "cell.pyc", "conftest.py")


class Place:
    """A work folder with a canary and a folder outside of those that are changed."""

    def __init__(self, work: Path) -> None:
        self.canary, self.outside = work / "canary", work / "outside"
        os.environ["SEQLOOM_CANARY"] = str(self.canary)
        self.canary.unlink(missing_ok=True)
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
        assert not self.canary.exists(), "planted code was executed"
        assert self.read() == self.whole, "a file outside of the folder was changed"


def write_cell(work: Path) -> Path:
    """Write the user's cell, whose text is trusted, and return its file."""
    file = work / "mine.py"
    file.write_text(GOOD)
    remember(GOOD.encode())
    return file


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
        py_compile.compile(evil, cfile=str(folder / "evil.pyc"), doraise=True)
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


def _plant(draw: random.Random, folder: Path, place: Place) -> str:
    """Put bytecode, modules and packages beside what is read."""
    for parent in {file.parent for file in _files(folder)}:
        cached = parent / "__pycache__"
        cached.mkdir(exist_ok=True)
        for name in ("cell", "mine", "a"):
            py_compile.compile(
                str(place.outside / "evil.py"), cfile=str(cached / f"{name}.cpython-311.pyc"), doraise=True
            )
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
