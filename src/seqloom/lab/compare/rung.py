"""A training that pauses at a step, to go on later as if it never had."""

from __future__ import annotations

import time
from typing import Any

from seqloom.lab.compare import rows
from seqloom.lab.data.task import Task
from seqloom.lab.stats.metrics import scores
from seqloom.lab.training.distributed import Processes
from seqloom.lab.training.journal import Journal
from seqloom.lab.training.loop import Training
from seqloom.lab.training.progress import Telling
from seqloom.lab.training.run import METRICS, Run
from seqloom.lab.training.train import choose_device
from seqloom.lab.training.weights_file import load_weights


class _Paused(Exception):  # noqa: N818
    pass


class Rung(Training):
    """Trains until step `until`, which must be one with a validation, or until the run is finished; says nothing."""

    def __init__(self, task: Task, run: Run, until: int) -> None:
        super().__init__(task, run, choose_device(run.settings), Processes())
        self.until = until

    def go(self) -> None:
        kept = self._restore()
        self.journal = Journal(self.run.folder / METRICS, kept)
        self.saved = time.perf_counter()
        self.began = self.saved - self.at.seconds
        try:
            with Telling(False, 1) as self.telling:
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
        told = scores(made, intervals=True, block=self.task.overlap)
        intervals: dict[str, Any] = {f"{name}_interval": list(ends) for name, ends in told.intervals.items()}
        journal = Journal(self.run.folder / METRICS, (self.run.folder / METRICS).stat().st_size)
        journal.write(step=found.facts["step"], split="test", rows=told.rows, **told.values, **intervals)
        journal.close()
        return made
