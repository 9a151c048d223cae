"""Numbers for each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.lab.data.task import Batch, Task
from seqloom.lab.kinds.columns import Columns, sum_errors
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.pages.examples import chart_values
from seqloom.lab.kinds.readout import build_reader
from seqloom.lab.kinds.results import Result, build_value_results
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock


class ForRegress(ForTask):
    """Squared error; NaN targets are left out."""

    streams = True
    output = "values"

    def finish(self, scores: Tensor) -> Tensor:
        return scores.float()

    def invert_output(self, output: Tensor) -> Tensor:
        return output

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = get_targets(batch)
        off = torch.where(y.isnan(), 0.0, scores.float() - y.nan_to_num())
        return off.square().flatten(1).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (~get_targets(batch).isnan()).flatten(1).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.float())


class RegressKind(Kind):
    """Numbers for each row: squared error."""

    name = "regress"
    topology = "N to 1"
    noun = "number"
    decoder = "values"
    metrics = ("rmse", "mae", "mse")
    baselines = ("mean", "ridge", "ridge of letters", "rocket")
    is_per_row = True
    has_values = True
    reads_timespans = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        return ForRegress(build_reader(task, settings, self.has_timespans(task), pools=False, outputs=task.target.size))

    def wrap_baseline(self, task: Task, module: nn.Module) -> ForTask:
        return ForRegress(module)

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        return {"scale": task.encoding.y.scale.state()}

    def analyse_errors(
        self,
        model: ForTask,
        task: Task,
        columns: Columns,
        batch: int,
        is_late: Callable[[], bool],
        shared: Columns,
    ) -> list[PageBlock]:
        return [chart_values(model, task, batch)]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        """Return errors in the units of the data."""
        assert batch.y is not None
        y, p = (
            np.array(task.decode(v), dtype=np.float64).reshape(len(batch), -1) for v in (batch.y, prediction.values)
        )
        return sum_errors(p - y)

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        return build_value_results(task, prediction)
