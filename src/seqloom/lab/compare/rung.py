"""The job of one rung: start or resume a training, and stop at a given step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare import row_scores
from seqloom.lab.compare.data import load_task
from seqloom.lab.data.task import Task
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.checkpoint import load_weights
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.layout import RUN_FILE
from seqloom.lab.training.loop import Training
from seqloom.lab.training.progress import ProgressReport
from seqloom.lab.training.results import finite_or_none, summarise_run
from seqloom.lab.training.run import METRICS, Run
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.train import choose_device

NOT_METRICS = ("step", "epoch", "seconds")


def train_rung(
    source: Mapping[str, Any], settings: Mapping[str, Any], run: str, until: int, test: bool, folder: Path
) -> dict[str, Any]:
    """Train up to step `until`; with `test`, store the scores of the test rows in the job's folder."""
    task, place = load_task(source), Path(run)
    if not (place / RUN_FILE).exists():
        Run.create(place, TrainSettings(**settings), task, dict(source))
    stored = Run.load(place)
    with use_one_thread(), torch.random.fork_rng(devices=[]), stored.lock():
        rung = Rung(task, stored, until)
        rung.train()
        if test:
            row_scores.save(folder, rung.test(stored.settings.sizes["batch"] or 32))
    facts = summarise_run(stored)
    lines = [line for line in stored.metrics() if line.get("split") == "valid"]
    return {
        "step": rung.at.step,
        "finished": rung.at.finished,
        "best_step": facts["best_step"],
        "valid": {name: value for name, value in facts["valid"].items() if name not in NOT_METRICS},
        "seconds": rung.at.seconds,
        "curve": [{k: finite_or_none(v) for k, v in line.items() if isinstance(v, (int, float))} for line in lines],
    }


class _Paused(Exception):  # noqa: N818
    pass


class Rung(Training):
    """A silent training that stops at step `until`, which must be one with a validation, or earlier if it finishes."""

    def __init__(self, task: Task, run: Run, until: int) -> None:
        super().__init__(task, run, choose_device(run.settings), ProcessGroup())
        self.until = until

    def train(self) -> None:
        position = self._restore()
        self.journal = Journal(self.run.folder / METRICS, position)
        self.saved = time.perf_counter()
        self.began = self.saved - self.at.seconds
        try:
            with ProgressReport(False, 1) as self.progress:
                while not self.at.finished and self.at.step < self.until:
                    self._train_epoch()
        except _Paused:
            pass  # the run is saved; a later rung resumes it
        finally:
            self.journal.close()

    def _validate(self) -> None:
        super()._validate()
        if self.at.step >= self.until and not self.at.finished:
            raise _Paused

    def test(self, batch: int) -> row_scores.Columns:
        """Score the test rows with the best weights, and log the metrics as `seqloom train` does."""
        best = self.run.checkpoint("best", files=["weights"])
        assert best is not None
        load_weights(self.model, best.tensors("weights"))
        columns = row_scores.score_rows(self.model, self.task, "test", batch)
        if any(line.get("split") == "test" for line in self.run.metrics()):
            return columns
        result = compute_scores(columns, intervals=True, block=self.task.overlap)
        intervals: dict[str, Any] = {f"{name}_interval": list(ends) for name, ends in result.intervals.items()}
        journal = Journal(self.run.folder / METRICS, (self.run.folder / METRICS).stat().st_size)
        journal.write(step=best.facts["step"], split="test", rows=result.rows, **result.values, **intervals)
        journal.close()
        return columns
