"""One training as a folder.

run.json        settings, versions, seed, the data's fingerprint; written once
metrics.jsonl   one JSON object a line, appended to
last/ best/     checkpoints (see checkpoint.py): weights.safetensors is the model
task/           what encodes inputs and decodes predictions
cell.py         where the model is a person's own cell: the text of its file
"""

from __future__ import annotations

import json
import platform
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NotRequired

import torch
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # that of Python 3.11 is not for pydantic

from seqloom.cells import lookup
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import load_task
from seqloom.lab.data.task import Task
from seqloom.lab.files import scratch, sealed, trust
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.training import checkpoint
from seqloom.lab.training.checkpoint import Checkpoint
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.settings import TrainSettings
from seqloom.layers.registry import BI_PREFIX

FORMAT = 1
FILE = "run.json"
METRICS = "metrics.jsonl"
CELL = "cell.py"
WHICH = ("best", "last")
TRIES = 5
PACKAGES = ("seqloom", "torch", "numpy", "polars", "scikit-learn", "tokenizers")


class _Named(TypedDict):
    name: str
    kind: str


class _Record(TypedDict):
    """The content of run.json."""

    created: str
    settings: dict[str, Any]
    task: _Named
    data: dict[str, Any]
    source: Any
    versions: dict[str, str]
    cell: NotRequired[dict[str, str]]


class TakenError(UserError):
    """A folder that belongs to another run, or to another process that trains in it."""


class Run:
    """A training on disk: `Run.load("runs/reviews")`."""

    def __init__(self, folder: Path, record: dict[str, Any], settings: TrainSettings, trust: bool = False) -> None:
        self.folder, self.record, self.settings, self.trust = folder, record, settings, trust

    @classmethod
    def create(cls, folder: Path | str, settings: TrainSettings, task: Task, source: Any = None) -> Run:
        """Make a new folder, whole or not at all. `source` (JSON) says where the data came from.

        Raises:
            TakenError: If the folder holds a run or other files; of several processes at the same time, one succeeds.
        """
        folder = Path(folder)
        code = _own_code(settings.model)
        record: dict[str, Any] = {
            "format": FORMAT,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "settings": settings.model_dump(),
            "seed": settings.seed,
            "task": {"name": task.name, "kind": task.kind},
            "data": fingerprint(task),
            "source": source,
            "versions": versions(),
        }
        _check_free(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = scratch.choose_name(folder)
        try:
            work.mkdir()
            if code is not None:
                file, text = code
                checkpoint.write_file(work / CELL, text)
                record["cell"] = {"file": str(file), "sha256": trust.digest(text)}
                trust.remember(text)
            task.save(work / "task")
            checkpoint.settle(work / "task")
            checkpoint.write_file(work / FILE, sealed.dumps(record, indent=1))
            with suppress(OSError):
                folder.rmdir()  # an empty one
            try:
                work.rename(folder)
            except OSError:
                _check_free(folder)  # another process was faster
                raise
            checkpoint.sync(folder.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return cls(folder, record, settings)

    @classmethod
    def load(cls, path: Path | str, *, trust: bool = False) -> Run:
        """Open a run that was created; its data need not be there.

        Args:
            path: The run's folder.
            trust: Whether the Python code stored in the folder may be executed. Needed if the model is a cell from
                a file that this user has not trained with on this machine.
        """
        folder = Path(path)
        file = folder / FILE
        if not file.is_file():
            there = "there is no such folder" if not folder.is_dir() else f"it has no {FILE}"
            raise UserError(f"{folder} is not a run: {there}")
        record = sealed.loads(file.read_bytes(), file, FORMAT)
        try:
            settings = TrainSettings(**record["settings"])
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, one["loc"])) or one["msg"] for one in error.errors())
            raise UserError(f"{file} has settings that this seqloom does not know: {wrong}") from None
        except (KeyError, TypeError):
            raise DamagedError(f"{file} is damaged: it has no settings; restore it from a copy") from None
        with sealed.interpret(file):
            TypeAdapter(_Record).validate_python(record)
        return cls(folder, record, settings, trust)

    def settings_to_build(self) -> TrainSettings:
        """Return the settings to build the model from. A cell from a file is replaced by its copy in the folder.

        Raises:
            UntrustedError: If this user has not trained with that code and the run was not opened with `trust=True`.
            Damaged: If the copy was changed.
        """
        model = self.settings.model
        if ".py:" not in model:
            return self.settings
        file = self.folder / CELL
        kept = self.record.get("cell")
        if not isinstance(kept, dict) or not file.is_file():
            raise UserError(
                f"{self.folder} was trained with the cell {model}, but its copy of that file ({CELL}) is missing; "
                "restore it from a copy of the run"
            )
        text = file.read_bytes()
        if trust.digest(text) != kept.get("sha256"):
            raise DamagedError(f"{file} is damaged: the run was trained with other content; restore it from a copy")
        trust.check(text, file, self.folder, self.trust)
        both = BI_PREFIX if model.startswith(BI_PREFIX) else ""
        place = lookup.load_source(text, file.resolve(), model.rpartition(":")[2])
        return self.settings.model_copy(update={"model": both + place})

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @cached_property
    def task(self) -> Task:
        """Encodes inputs and decodes predictions; reads other files with `over`. Has no data of its own."""
        return load_task(self.folder / "task")

    @property
    def finished(self) -> str | None:
        """Why training ended ("steps", "epochs", "patience"); None where it has not."""
        try:
            found = checkpoint.find(self.folder / "last")
        except DamagedError:
            return None
        return None if found is None else found.facts.get("finished")

    def checkpoint(self, which: str = "best", missing_ok: bool = False, files: Sequence[str] = ()) -> Checkpoint | None:
        """The one asked for, with these of its files or all; where it is damaged, the other one, with a warning."""
        if which not in WHICH:
            raise UserError(f"which must be one of {', '.join(WHICH)}, got {which!r}")
        try:
            found = self._whole(which, files)
        except DamagedError as error:
            other = WHICH[1 - WHICH.index(which)]
            try:
                found = self._whole(other, files)
            except DamagedError:
                found = None
            if found is None:
                raise DamagedError(f"{error}, and there is no other checkpoint to fall back to") from None
            warnings.warn(f"{error}; taking {other}/ of step {found.facts['step']} instead", stacklevel=2)
        if found is None and not missing_ok:
            raise UserError(f"{self.folder} has no checkpoint yet; let it train for a while first")
        return found

    def _whole(self, which: str, files: Sequence[str]) -> Checkpoint | None:
        for _ in range(TRIES):  # a training may be renaming it
            try:
                found = checkpoint.find(self.folder / which)
                return None if found is None else found.whole(*files)
            except (FileNotFoundError, DamagedError) as error:
                wrong = error
        raise wrong if isinstance(wrong, DamagedError) else DamagedError(str(wrong))

    def model(self, which: str = "best", device: str = "cpu") -> ForTask:
        """The trained model: `predict(batch)`, in eval mode. Of an average of weights, the average."""
        from seqloom.lab.training.model import build
        from seqloom.lab.training.weights_file import check_weights, load_weights

        found = self.checkpoint(which, files=["weights"])
        assert found is not None
        task, settings = self.task, self.settings_to_build()
        try:
            with torch.device("meta"):  # without memory: settings that do not fit the weights may ask for any amount
                check_weights(build(task, settings), found.tensors("weights"))
            model = build(task, settings)
            load_weights(model, found.tensors("weights"))
        except UserError as error:
            raise UserError(f"{self.folder}: {error}") from error
        return model.to(device).eval()

    def predict(self, rows: Any, **options: Any) -> list[dict[str, Any]]:
        """What the model says of new rows, or of a file's: one dict each, in their order."""
        from seqloom.lab.training.predict import predict

        return list(predict(self, rows, **options))

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a last line that is torn is left out."""
        file = self.folder / METRICS
        if not file.is_file():
            return []
        return [_line(line, n, file) for n, line in enumerate(_whole_lines(file.read_bytes()).splitlines(), 1)]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let no other process train here meanwhile; the lock ends with the process, however it ends.

        Checkpoints that a killed process was writing are finished or removed.
        """
        try:
            import fcntl
        except ImportError:  # Windows
            self._recover()
            yield
            return
        with (self.folder / FILE).open("rb") as file:  # written once, so never replaced under the lock
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise TakenError(f"{self.folder} is being trained by another process; wait for it to end") from None
            self._recover()
            yield

    def _recover(self) -> None:
        for which in WHICH:
            checkpoint.recover(self.folder / which)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.settings.model} on {self.record['task']['name']})"


def _check_free(folder: Path) -> None:
    """Raise an error if a new run cannot be made here."""
    if (folder / FILE).exists():
        raise TakenError(f"{folder} already holds a run; resume it, or choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TakenError(f"{folder} holds files that are not a run; choose another name")


def _own_code(model: str) -> tuple[Path, bytes] | None:
    """Return the file of a cell named as FILE.py:CLASS and its content; None for a model by name."""
    if ".py:" not in model:
        return None
    file = Path(model.removeprefix(BI_PREFIX).rpartition(":")[0]).absolute()
    return file, file.read_bytes()


def _line(text: bytes, number: int, file: Path) -> dict[str, Any]:
    """Return a line of metrics: an object that says of which split and step it is."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("step"), int):
        raise DamagedError(f"{file} is damaged: line {number} is not what was written; restore it from a copy")
    return found


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b"\n") + 1]


def fingerprint(task: Task) -> dict[str, Any]:
    """Which examples are in which split."""
    return {name: {"size": split.size, "hash": split.hash} for name, split in task.splits.items()}


def versions() -> dict[str, str]:
    """Of what a training's numbers depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
