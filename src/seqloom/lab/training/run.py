"""A run: one training as a folder on disk.

run.json        settings, versions, seed, fingerprint of the data; written once
metrics.jsonl   one JSON object per line; only appended to
last/ best/     checkpoints (see checkpoint.py); weights.safetensors is the model
decision.json   of a classifier: temperature, threshold and reject option (see decision.py)
intervals.json  of a forecast: the width of its intervals (see prediction_intervals.py)
task/           encodes inputs and decodes predictions
cell.py         if the model is a cell from a user's file: a copy of that file
"""

from __future__ import annotations

import json
import platform
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NotRequired, TypeVar, Unpack, overload

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from seqloom.cells import lookup
from seqloom.core.errors import UserError
from seqloom.lab.data.registry import load_task
from seqloom.lab.data.task import DataSource, Frame, Notes, Task, flatten_results, is_frame, make_frame
from seqloom.lab.files import checkpoint, scratch, sealed, trust
from seqloom.lab.files.checkpoint import Checkpoint, check_finite, check_weights, load_weights
from seqloom.lab.files.scratch import refuse_links
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.kinds.baselines.registry import build_baseline
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import KINDS
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.layout import RUN_FILE
from seqloom.lab.training.model import build, build_without_memory
from seqloom.layers.registry import BI_PREFIX

FORMAT = 1
METRICS = "metrics.jsonl"
CELL = "cell.py"
WHICH = ("best", "last")
READ_ATTEMPTS = 5  # attempts to read a checkpoint that a training may be renaming
F = TypeVar("F", bound=Frame)
PACKAGES = ("seqloom", "torch", "numpy", "polars", "scikit-learn", "tokenizers")


class _Named(TypedDict):
    name: str
    kind: str


class _RunRecord(TypedDict):
    """The content of run.json."""

    created: str
    settings: dict[str, Any]
    task: _Named
    data: dict[str, Any]
    source: Any
    versions: dict[str, str]
    cell: NotRequired[dict[str, str]]
    baseline: NotRequired[dict[str, Any]]


@cache
def _record_adapter() -> TypeAdapter[_RunRecord]:
    return TypeAdapter(_RunRecord)


class PredictOptions(TypedDict, total=False):
    """Options of `Run.predict`; `seqloom.lab.training.predict.predict` documents them."""

    which: str
    device: str
    probabilities: bool
    keep: Sequence[str]
    notes: Notes | None


class TakenError(UserError):
    """Raised for a folder that holds another run or is used by another training process."""


class Run:
    """A training on disk.

    Attributes:
        folder: The run's folder.
        record: The content of run.json.
        settings: The settings of the training.
        trust: Whether Python code stored in the folder may be executed; or the digest of the code that may.

    Example:
        >>> seqloom.train("adding", steps=2, hidden=8, out="runs/sums").folder.name
        'sums'
        >>> run = seqloom.Run.load("runs/sums")
        >>> run.settings.model
        'gru'
    """

    def __init__(
        self, folder: Path, record: dict[str, Any], settings: TrainSettings, trust: bool | str = False
    ) -> None:
        self.folder, self.record, self.settings, self.trust = folder, record, settings, trust

    @classmethod
    def create(
        cls,
        folder: Path | str,
        settings: TrainSettings,
        task: Task,
        source: Mapping[str, Any] | None = None,
        baseline: Mapping[str, Any] | None = None,
    ) -> Run:
        """Create the folder of a new run atomically.

        Args:
            folder: The folder, which must not exist or be empty.
            source: Where the data came from, JSON-serialisable.
            baseline: For a baseline, its class and settings, JSON-serialisable.

        Raises:
            TakenError: If the folder holds a run or other files, or another process was faster.
        """
        folder = Path(folder)
        code = lookup.read_source(settings.model.removeprefix(BI_PREFIX))
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
        if baseline is not None:
            record["baseline"] = baseline
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
            checkpoint.sync_files(work / "task")
            checkpoint.write_file(work / RUN_FILE, sealed.dumps(record, indent=1))
            with suppress(OSError):
                folder.rmdir()  # it may exist, empty
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
    def load(cls, path: Path | str, *, trust: bool | str = False) -> Run:
        """Open a run; its data is not needed.

        Args:
            path: The run's folder.
            trust: Whether the Python code stored in the folder may be executed; or the SHA-256 of the code that may.
                Needed if the model is a cell from a file that this user has not trained with on this machine.

        Raises:
            UserError: If the folder is not a run, or a newer seqloom wrote it.
            DamagedError: If run.json was changed.
        """
        folder = Path(path)
        file = folder / RUN_FILE
        if not file.is_file():
            reason = "there is no such folder" if not folder.is_dir() else f"it has no {RUN_FILE}"
            raise UserError(f"{folder} is not a run: {reason}")
        record = sealed.loads(file.read_bytes(), file, FORMAT)
        try:
            settings = TrainSettings(**record["settings"])
        except ValidationError as error:
            wrong = ", ".join(".".join(map(str, one["loc"])) or one["msg"] for one in error.errors())
            raise UserError(f"{file} has settings that this seqloom does not know: {wrong}") from None
        except (KeyError, TypeError):
            raise DamagedError(f"{file} is damaged: it has no settings; restore it from a copy") from None
        with sealed.interpret(file):
            _record_adapter().validate_python(record)
            if record["task"]["kind"] not in KINDS:
                raise ValueError(record["task"]["kind"])
            lookup.split_name(settings.model.removeprefix(BI_PREFIX))
        return cls(folder, record, settings, trust)

    def settings_to_build(self) -> TrainSettings:
        """Return the settings to build the model from. A cell from a file is replaced by its copy in the folder.

        Raises:
            UntrustedError: If this user has not trained with that code and the run was not opened with `trust=True`.
            DamagedError: If the copy was changed.
        """
        model = self.settings.model
        place = lookup.split_name(model.removeprefix(BI_PREFIX))
        if place is None:
            return self.settings
        file = self.folder / CELL
        copied = self.record.get("cell")
        if not isinstance(copied, dict) or not file.is_file():
            raise UserError(
                f"{self.folder} was trained with the cell {model}, but its copy of that file ({CELL}) is missing; "
                "restore it from a copy of the run"
            )
        text = file.read_bytes()
        if trust.digest(text) != copied.get("sha256"):
            raise DamagedError(f"{file} is damaged: the run was trained with other content; restore it from a copy")
        trust.check(text, file, self.folder, self.trust)
        both = BI_PREFIX if model.startswith(BI_PREFIX) else ""
        copy = lookup.load_source(text, file.resolve(), place[1])
        return self.settings.model_copy(update={"model": both + copy})

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.resolve().name

    @cached_property
    def task(self) -> Task:
        """The task without its data: it encodes inputs, decodes predictions and reads other files with `over`."""
        return load_task(self.folder / "task")

    @property
    def finished(self) -> str | None:
        """Why training ended ("steps", "epochs", "patience", or "fitted" for a baseline); None if it has not ended."""
        if "baseline" in self.record:
            return "fitted"
        try:
            last = checkpoint.find(self.folder / "last")
        except DamagedError:
            return None
        return None if last is None else last.facts.get("finished")

    def checkpoint(self, which: str = "best", missing_ok: bool = False, files: Sequence[str] = ()) -> Checkpoint | None:
        """Return a checkpoint; if it is damaged, warn and return the other one.

        Args:
            which: "best" or "last".
            missing_ok: Whether to return None if there is no checkpoint yet.
            files: Names of the files to read, without suffix. Default: all.

        Raises:
            UserError: If there is no checkpoint and `missing_ok` is False.
            DamagedError: If both checkpoints are damaged.
        """
        if which not in WHICH:
            raise UserError(f"which must be one of {', '.join(WHICH)}, got {which!r}")
        try:
            loaded = self._read_checkpoint(which, files)
        except DamagedError as error:
            other = WHICH[1 - WHICH.index(which)]
            try:
                loaded = self._read_checkpoint(other, files)
            except DamagedError:
                loaded = None
            if loaded is None:
                raise DamagedError(f"{error}, and there is no other checkpoint to fall back to") from None
            warnings.warn(f"{error}; using {other}/ of step {loaded.facts['step']} instead", stacklevel=2)
        if loaded is None and not missing_ok:
            raise UserError(f"{self.folder} has no checkpoint yet; train it longer first")
        return loaded

    def _read_checkpoint(self, which: str, files: Sequence[str]) -> Checkpoint | None:
        for _ in range(READ_ATTEMPTS):
            try:
                loaded = checkpoint.find(self.folder / which)
                return None if loaded is None else loaded.load(*files)
            except (FileNotFoundError, DamagedError) as error:
                wrong = error
        raise wrong if isinstance(wrong, DamagedError) else DamagedError(str(wrong))

    def model(self, which: str = "best", device: str = "cpu") -> ForTask:
        """Return the trained model in eval mode, with averaged weights if the training averaged them.

        Args:
            which: The checkpoint, "best" or "last".
            device: The device of the model.
        """
        is_baseline = "baseline" in self.record
        loaded = self.checkpoint("best" if is_baseline else which, files=["weights"])
        assert loaded is not None
        if is_baseline:
            with sealed.interpret(self.folder / RUN_FILE):
                model = build_baseline(self.task, self.record["baseline"], loaded.tensors("weights"))
            model.restore_decision(self.folder, self.task)
            return model.to(device).eval()
        task, settings = self.task, self.settings_to_build()
        try:
            # settings that do not match the weights may describe a huge model
            check_weights(build_without_memory(task, settings), loaded.tensors("weights"))
            check_finite(loaded.tensors("weights"))
            model = build(task, settings)
            load_weights(model, loaded.tensors("weights"))
        except UserError as error:
            raise UserError(f"{self.folder}: {error}") from error
        model.restore_decision(self.folder, self.task)
        return model.to(device).eval()

    @overload
    def predict(  # type: ignore[overload-overlap]  # a frame is iterable, too
        self, rows: F, **options: Unpack[PredictOptions]
    ) -> F: ...

    @overload
    def predict(self, rows: DataSource | Iterable[Any], **options: Unpack[PredictOptions]) -> list[dict[str, Any]]: ...

    def predict(
        self, rows: DataSource | Iterable[Any], **options: Unpack[PredictOptions]
    ) -> Frame | list[dict[str, Any]]:
        """Return a prediction for each row of new data, in order.

        Args:
            rows: Inputs, dicts of columns, a DataFrame, or a file in a format that training reads.
            **options: `which`, `device`, `probabilities`, `keep` and `notes` of `seqloom.lab.training.predict.predict`.

        Returns:
            A dict for each row with "prediction" and, for classes and tags, "probability". For a DataFrame, a DataFrame
            of the same library with these columns; with `probabilities`, one more for each class, `probability_CLASS`.
        """
        from seqloom.lab.training.predict import predict

        results = list(predict(self, rows, **options))
        return make_frame(flatten_results(results), rows) if is_frame(rows) else results

    def metrics(self) -> list[dict[str, Any]]:
        """Return all lines of metrics.jsonl as dicts; an incomplete last line is left out."""
        file = self.folder / METRICS
        if not file.is_file():
            return []
        data = file.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        return [_parse_line(line, n, file) for n, line in enumerate(lines, 1)]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from training in this folder; the lock ends with the process.

        Checkpoints that a killed process was writing are completed or removed.

        Raises:
            TakenError: If another process trains in the folder.
            UserError: If there is a symbolic link in the folder.
        """
        refuse_links(self.folder)
        try:
            import fcntl
        except ImportError:  # Windows
            self._recover()
            yield
            return
        with (self.folder / RUN_FILE).open("rb") as file:  # never replaced, so the lock stays valid
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
    """Raise a TakenError if a new run cannot be created here."""
    if (folder / RUN_FILE).exists():
        raise TakenError(f"{folder} already holds a run; resume it, or choose another name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TakenError(f"{folder} holds files that are not a run; choose another name")


def _parse_line(text: bytes, number: int, file: Path) -> dict[str, Any]:
    """Parse a line of metrics.jsonl."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        line = None
    if not isinstance(line, dict) or not isinstance(line.get("step"), int):
        raise DamagedError(f"{file} is damaged: line {number} has changed; restore it from a copy")
    return line


def fingerprint(task: Task) -> dict[str, Any]:
    """Return size and hash of the examples in each split."""
    return {name: {"size": split.size, "hash": split.hash} for name, split in task.splits.items()}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    numbers = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            numbers[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return numbers
