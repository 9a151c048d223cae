"""The job of one rung: start or resume a training, and stop at a given step, or earlier if time is up."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare import cells, row_scores
from seqloom.lab.compare.data import load_task, whole_task
from seqloom.lab.data.task import Task
from seqloom.lab.files.checkpoint import load_weights
from seqloom.lab.jobs.cpu import use_one_thread
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.layout import RUN_FILE
from seqloom.lab.training.loop import Training
from seqloom.lab.training.progress import ProgressReport
from seqloom.lab.training.results import finite_or_none, summarise_run
from seqloom.lab.training.run import METRICS, Run
from seqloom.lab.training.train import choose_device

NOT_METRICS = ("step", "epoch", "seconds")
TEXT_METRICS = ("bleu", "chrf", "exact", "cer", "wer")  # metrics of decoded translations


@dataclass(frozen=True)
class Deadline:
    """The deadline of a rung, and the time that it needs after its last step."""

    at: float = math.inf  # seconds since the epoch
    valid: float = 0.0  # estimated seconds of a validation
    test: float = 0.0  # seconds for scoring the test rows; 0 if they are not scored


def train_rung(
    source: Mapping[str, Any],
    settings: Mapping[str, Any],
    run: str,
    until: int,
    test: bool,
    deadline: Mapping[str, Any] | None,
    folder: Path,
) -> dict[str, Any]:
    """Train up to step `until` (a job).

    Args:
        run: the folder of the run, which is resumed if it exists.
        until: the step, at which there must be a validation.
        test: whether to store the scores of the test rows in the job's folder.
        deadline: the "file" and "stage" in it whose time limits the training, and the estimated seconds of a
            validation ("valid") and of the test ("test"); None for no limit.
    """
    task, place = load_task(source), Path(run)
    if not (place / RUN_FILE).exists():
        chosen = TrainSettings(**settings)
        cells.load_copy(chosen.model)
        Run.create(place, chosen, whole_task(task), dict(source))
    stored = Run.load(place)
    with use_one_thread(), torch.random.fork_rng(devices=[]), stored.lock():
        rung = Rung(task, stored, until, _read_deadline(deadline, test))
        rung.train()
        texts: dict[str, float | None] = {}
        if not test:
            rung.model.store_decision(place)  # without a temperature: most of these runs are only a first try
        else:
            batch = stored.settings.sizes["batch"] or 32
            row_scores.save(folder, rung.test(batch))
            if kind_of(task).writes:  # validations while training do not decode
                columns = row_scores.score_rows(rung.model, task, "valid", batch)
                values = compute_scores(columns).values
                texts = {name: finite_or_none(values[name]) for name in TEXT_METRICS}
    facts = summarise_run(stored)
    lines = [line for line in stored.metrics() if line.get("split") == "valid"]
    return {
        "step": rung.at.step,
        "finished": rung.at.finished,
        "is_cut": rung.is_cut,
        "best_step": facts["best_step"],
        "valid": {name: value for name, value in facts["valid"].items() if name not in NOT_METRICS} | texts,
        "seconds": rung.at.seconds,
        "curve": [{k: finite_or_none(v) for k, v in line.items() if isinstance(v, (int, float))} for line in lines],
    }


def _read_deadline(deadline: Mapping[str, Any] | None, test: bool) -> Deadline:
    """Read the deadline from its file, which a resumed comparison rewrites; the job's settings stay the same."""
    if deadline is None:
        return Deadline()
    at = json.loads(Path(deadline["file"]).read_text())[deadline["stage"]]
    return Deadline(float(at), deadline["valid"], deadline["test"] if test else 0.0)


class _Paused(Exception):  # noqa: N818
    pass


class Rung(Training):
    """A silent training that stops at step `until`, which must be one with a validation.

    It stops earlier if it finishes, or if the time until the deadline is needed to validate and to score the test.
    """

    def __init__(self, task: Task, run: Run, until: int, deadline: Deadline = Deadline()) -> None:
        super().__init__(task, run, choose_device(run.settings), ProcessGroup())
        self.until, self.deadline = until, deadline
        self.slowness = 1.0  # measured seconds of a validation, relative to the estimate
        self.is_cut = False

    def train(self) -> None:
        # a run that was paused is saved; a later rung resumes it
        with self._record(), suppress(_Paused), ProgressReport(False, 1) as self.progress:
            while not self.at.finished and self.at.step < self.until:
                self._train_epoch()

    def _is_time_up(self) -> bool:
        rest = self.slowness * (self.deadline.valid + self.deadline.test)
        return time.time() + rest > self.deadline.at

    def _validate(self) -> None:
        began = time.time()
        super()._validate()
        if self.deadline.valid:
            self.slowness = max(1.0, (time.time() - began) / self.deadline.valid)
        if self.at.finished:
            return
        self.is_cut = self.at.step < self.until and self._is_time_up()
        if self.is_cut or self.at.step >= self.until:
            raise _Paused

    def test(self, batch: int) -> Columns:
        """Calibrate the best weights, score the test rows with them, and log the metrics as `seqloom train` does."""
        best = self.run.checkpoint("best", files=["weights"])
        assert best is not None
        load_weights(self.model, best.tensors("weights"))
        self.model.fit_decision(self.task, self.settings)
        self.model.store_decision(self.run.folder)
        columns = row_scores.score_rows(self.model, self.task, "test", batch)
        if any(line.get("split") == "test" for line in self.run.metrics()):
            return columns
        result = compute_scores(columns, intervals=True, overlap=self.task.overlap)
        intervals: dict[str, Any] = {f"{name}_interval": list(ends) for name, ends in result.intervals.items()}
        journal = Journal(self.run.folder / METRICS, (self.run.folder / METRICS).stat().st_size)
        journal.write(step=best.facts["step"], split="test", rows=result.rows, **result.values, **intervals)
        journal.close()
        return columns
