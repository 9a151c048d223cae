"""Numbers for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.lab.data.task import Batch, Task
from seqloom.lab.kinds.columns import Columns, sum_errors
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import Kind, ScoredRows
from seqloom.lab.kinds.layers import build_reader
from seqloom.lab.kinds.results import Result, build_value_results, get_values
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import Chart, Curve, PageBlock

CHART_POINTS = 200


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
    baseline_model = ForRegress
    is_per_row = True
    has_values = True
    reads_timespans = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        return ForRegress(build_reader(task, settings, self.has_timespans(task), pools=False, outputs=task.target.size))

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        return {"scale": task.encoding.y.scale.state()}

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        """Chart true values in ascending order, with the predictions."""
        task, true, predicted = rows.task, [], []
        for batch in task.batches("test", batch=rows.batch):
            true += [row[0] for row in task.decode(get_targets(batch))]
            predicted += [row[0] for row in task.decode(rows.model.predict(batch).values)]
        order = np.argsort(np.array(true))
        points = order[np.linspace(0, len(order) - 1, min(CHART_POINTS, len(order))).astype(int)]
        x = [float(i) for i in range(len(points))]
        curves = [
            Curve("true", x, [float(true[i]) for i in points]),
            Curve("predicted", x, [float(predicted[i]) for i in points]),
        ]
        name = get_values(task).names[0]
        return [Chart("True and predicted values", "test rows, sorted by true value", name, curves)]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        """Return errors in the units of the data."""
        y, p = (np.array(task.decode(v), dtype=np.float64) for v in (get_targets(batch), prediction.values))
        return sum_errors((p - y).reshape(len(batch), -1))

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        return build_value_results(task, prediction)
