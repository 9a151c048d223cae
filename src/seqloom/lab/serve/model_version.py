"""A loaded run: its task, its model and the format of its rows. A new checkpoint is a new version."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError
from seqloom.lab.files import checkpoint
from seqloom.lab.files.sealed import DamagedError
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.serve.row_format import RowFormat
from seqloom.lab.serve.settings import ServeSettings
from seqloom.lab.serve.stepper import StreamStepper, build_stepper
from seqloom.lab.training.predict import continue_texts, predict_pieces
from seqloom.lab.training.run import Run
from seqloom.lab.web.problems import RequestError
from seqloom.models.decoding.sampling import Sampling


@dataclass(frozen=True, eq=False)
class ModelVersion:
    """A loaded checkpoint of a run."""

    name: str  # the name under which the run is served
    run: Run
    model: ForTask  # its model
    format: RowFormat  # what its rows look like
    signature: str  # identifies the checkpoint
    stepper: StreamStepper | None  # runs steps of streams; None if the run has none
    no_streams: str  # why it has no streams

    @property
    def trusted_code(self) -> str | bool:
        """The digest of the cell that a new version may execute: the user trusted only this code."""
        return bool(self.run.trust) and self.run.record.get("cell", {}).get("sha256", False)

    @property
    def step(self) -> int:
        """The training step of the checkpoint."""
        return int(self.signature.partition(" ")[0])

    def predict(self, rows: Sequence[Any], probabilities: bool, before: int = 0) -> list[dict[str, Any]]:
        """Return the result of each row, as `seqloom predict` does; `before` is how many rows precede them.

        Raises:
            RequestError: 422 if a row cannot be read; its number counts from 1.
        """
        if self.run.task.encoding is None:  # a built-in task has inputs, not columns
            rows = [row["input"] for row in rows]
        try:
            return list(predict_pieces(self.model, self.run.task, [list(rows)], probabilities, done=before))
        except UserError as error:
            raise RequestError(422, str(error)) from None
        except RuntimeError as error:
            if self.run.task.encoding is not None or "size" not in str(error):
                raise
            raise RequestError(422, "the rows have another shape than those of the training") from None  # torch.stack

    def continue_texts(
        self, prompts: Sequence[str], sampling: Sampling, max_tokens: int, count: int
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield, for each prompt, texts that begin with it; raises as `predict` does."""
        try:
            texts = continue_texts(self.model, self.run.task, prompts, sampling, max_tokens, count)
            for _ in prompts:
                with torch.no_grad():
                    some = list(islice(texts, count))
                yield some
        except UserError as error:
            raise RequestError(422, str(error)) from None

    def describe(self) -> dict[str, Any]:
        """Return what a client needs to know of the run."""
        task = self.run.task
        return {
            "name": self.name,
            "task": task.kind,
            "model": self.run.settings.model,
            "step": self.step,
            "columns": self.format.columns,
            "example": self.format.example,
            "streams": self.stepper is not None,
            "step_example": self.format.step_example if self.stepper is not None else None,
            "classes": kind_of(task).list_classes(task),
        }


def load_version(name: str, folder: Path, settings: ServeSettings, trust: bool | str = False) -> ModelVersion:
    """Load the best checkpoint of a run. With `trust`, as of `Run.load`, code stored in it may be executed.

    Raises:
        UserError: If the folder is not a run, or it has no checkpoint.
    """
    run = Run.load(folder, trust=trust)
    signature = find_signature(folder) or "0"
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # about a checkpoint that is being written; the next look finds the new one
        model = run.model("best", settings.device)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    rows = RowFormat(run.task, settings.max_rows, settings.max_steps)
    stepper = build_stepper(run.task, model, settings.max_steps)
    has_steps = isinstance(stepper, StreamStepper) and rows.step_example is not None
    reason = stepper if isinstance(stepper, str) else "its rows have time stamps, or attributes, for the whole row"
    return ModelVersion(name, run, model, rows, signature, stepper if has_steps else None, "" if has_steps else reason)  # type: ignore[arg-type]


def find_signature(folder: Path) -> str | None:
    """Return what identifies the best checkpoint of a run without reading its weights; None if there is none."""
    try:
        found = checkpoint.find(folder / "best")
    except (DamagedError, OSError):
        return None
    if found is None:
        return None
    return f"{found.facts['step']} {found.facts['files'].get('weights.safetensors', '')}"
