"""The job of one rung: a run that is created or goes on, up to a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from seqloom.lab.compare import rows
from seqloom.lab.compare.data import opened
from seqloom.lab.data.task import Task
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.cpu import use_one_thread
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.evaluate import finite_or_none
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.loop import Training
from seqloom.lab.training.progress import ProgressReport
from seqloom.lab.training.run import FILE, METRICS, Run
from seqloom.lab.training.settings import TrainSettings
from seqloom.lab.training.summary import summarise_run
from seqloom.lab.training.train import choose_device
from seqloom.lab.training.weights_file import load_weights

ABOUT = ("step", "epoch", "seconds")


def trial(
    source: Mapping[str, Any], settings: Mapping[str, Any], run: str, until: int, test: bool, folder: Path
) -> dict[str, Any]:
    """Train up to step `until`; with `test`, leave what the test rows add up to in the job's folder."""
    task, place = opened(source), Path(run)
    if not (place / FILE).exists():
        Run.create(place, TrainSettings(**settings), task, dict(source))
    made = Run.load(place)
    with use_one_thread(), torch.random.fork_rng(devices=[]), made.lock():
        rung = Rung(task, made, until)
        rung.train()
        if test:
            rows.save(folder, rung.tested(made.settings.sizes["batch"] or 32))
    told = summarise_run(made)
    lines = [line for line in made.metrics() if line.get("split") == "valid"]
    return {
        "step": rung.at.step,
        "finished": rung.at.finished,
        "best_step": told["best_step"],
        "valid": {name: value for name, value in told["valid"].items() if name not in ABOUT},
        "seconds": rung.at.seconds,
        "curve": [{k: finite_or_none(v) for k, v in line.items() if isinstance(v, (int, float))} for line in lines],
    }


class _Paused(Exception):  # noqa: N818
    pass


class Rung(Training):
    """Trains until step `until`, which must be one with a validation, or until the run is finished; says nothing."""

    def __init__(self, task: Task, run: Run, until: int) -> None:
        super().__init__(task, run, choose_device(run.settings), ProcessGroup())
        self.until = until

    def train(self) -> None:
        kept = self._restore()
        self.journal = Journal(self.run.folder / METRICS, kept)
        self.saved = time.perf_counter()
        self.began = self.saved - self.at.seconds
        try:
            with ProgressReport(False, 1) as self.progress:
                while not self.at.finished and self.at.step < self.until:
                    self._epoch()
        except _Paused:
            pass
        finally:
            self.journal.close()

    def _validate(self) -> None:
        super()._validate()
        if self.at.step >= self.until and not self.at.finished:
            raise _Paused

    def tested(self, batch: int) -> rows.Columns:
        """What the best weights make of the test rows; the run's journal gets its line, as from `seqloom train`."""
        found = self.run.checkpoint("best", files=["weights"])
        assert found is not None
        load_weights(self.model, found.tensors("weights"))
        made = rows.columns(self.model, self.task, "test", batch)
        if any(line.get("split") == "test" for line in self.run.metrics()):
            return made
        told = compute_scores(made, intervals=True, block=self.task.overlap)
        intervals: dict[str, Any] = {f"{name}_interval": list(ends) for name, ends in told.intervals.items()}
        journal = Journal(self.run.folder / METRICS, (self.run.folder / METRICS).stat().st_size)
        journal.write(step=found.facts["step"], split="test", rows=told.rows, **told.values, **intervals)
        journal.close()
        return made
