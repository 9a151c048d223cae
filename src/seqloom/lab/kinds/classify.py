"""One class for each row."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.lab.data.task import IGNORE, Batch, Classes, Task
from seqloom.lab.kinds import decision
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.decision import Decision
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import Kind, ScoredRows
from seqloom.lab.kinds.layers import build_reader, normalise
from seqloom.lab.kinds.objective import Objective, balance_classes, choose_objective, find_positive
from seqloom.lab.kinds.pages.class_analysis import analyse_classes
from seqloom.lab.kinds.pages.series_pictures import draw_classes
from seqloom.lab.kinds.results import Result, pick_best, round_all
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock
from seqloom.lab.stats.class_metrics import describe_classes
from seqloom.lab.stats.metrics import METRICS

MOST_RANKED_CLASSES = 10  # classes up to which AUROC and average precision are computed, each against the rest


class ForClassify(ForTask):
    """Cross-entropy over classes."""

    streams = True

    decision: Decision

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model, smoothing)
        self.decision = Decision()
        self.class_weights: Tensor | None = None  # (K,) in the training loss

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        """Return the scores of a batch; outside training they are calibrated."""
        z = super().scores(batch)[0]
        return (z if self.training else self.decision.calibrate(z)), None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, get_targets(batch))

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        if self.class_weights is None or not self.training:
            return self._nats(scores, get_targets(batch), "sum")
        # weights of rows, not of F.cross_entropy, which would also weight the classes of label smoothing
        y = get_targets(batch)
        weights = self.class_weights.to(scores.device)[y.clamp(min=0)]
        return (weights * self._nats(scores, y)).sum()

    def count_targets(self, batch: Batch) -> Tensor:
        return get_targets(batch) >= 0

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        p = scores.float().softmax(-1)
        return Prediction(self.decision.choose(scores), probabilities=p, positive=self.decision.positive)

    def prepare(self, task: Task, settings: TrainSettings) -> None:
        """Set the positive class and the class weights."""
        self.decision = Decision(find_positive(task, settings.positive))
        if settings.class_weights == "balanced":
            weights = balance_classes(task)
            self.decision = replace(self.decision, weights=weights)
            self.class_weights = torch.tensor(weights)

    @torch.no_grad()
    def fit_decision(self, task: Task, settings: TrainSettings) -> None:
        """Fit temperature, threshold and reject option."""
        if "valid" not in task.splits:
            return
        start, training = Decision(self.decision.positive, weights=self.decision.weights), self.training
        self.decision = Decision()  # raw scores
        device = next(self.parameters()).device
        zs, ys = [], []
        self.eval()
        try:
            for batch in task.batches("valid", **settings.sizes):
                zs.append(self.scores(batch.to(device))[0].float().cpu())
                ys.append(get_targets(batch))
        finally:
            self.train(training)
            self.decision = start
        if zs:
            self.decision = decision.fit_decision(
                start, torch.cat(zs), torch.cat(ys), settings.threshold or "", settings.reject or ""
            )

    def store_decision(self, folder: Path) -> None:
        decision.save(folder, self.decision)

    def restore_decision(self, folder: Path, task: Task) -> None:
        self.decision = decision.load(folder, task.target.size if isinstance(task.target, Classes) else None)

    def describe_decision(self, names: tuple[str, ...] = ()) -> dict[str, Any]:
        record = asdict(self.decision)
        if names:
            record["positive"] = names[self.decision.positive] if len(names) == 2 else None
        return record


class ClassifyKind(Kind):
    """One class for each row: cross-entropy, with a threshold or a reject option."""

    name = "classify"
    topology = "N to 1"
    has_classes = True
    noun = "class"
    decoder = "classes"
    metrics = ("accuracy", "balanced_accuracy", "macro_f1", "f1", "auroc", "average_precision", "loss")
    baselines = ("majority", "logistic", "logistic of letters", "rocket", "nearest series")
    baseline_model = ForClassify
    use = "Classifies"
    pipeline = "text-classification"
    selecting = ("accuracy",)
    is_per_row = True
    reads_timespans = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        model = build_reader(task, settings, self.has_timespans(task), pools=True, classes=task.target.size)
        return ForClassify(normalise(model, settings), settings.label_smoothing)

    def list_metrics(self, task: Task) -> list[str]:
        absent = {"f1"} if task.target.size != 2 else set()
        absent |= {"auroc", "average_precision"} if not 2 <= task.target.size <= MOST_RANKED_CLASSES else set()
        return [name for name in self.metrics if name not in absent]

    def _describe_data(self, task: Task) -> str:
        return f"{task.target.size} classes"

    def choose_objective(
        self, task: Task, metric: str | None, class_weights: str | None = None, threshold: str | None = None
    ) -> Objective:
        chosen, default = None if metric is None else self.find_metric(task, metric), self.list_metrics(task)[0]
        return choose_objective(task, chosen, METRICS[default], class_weights, threshold)

    def list_decided(self, task: Task) -> tuple[str, ...]:
        return _get_names(task)

    def name_positive(self, task: Task, positive: str | None) -> str | None:
        names = _get_names(task)
        return names[find_positive(task, positive)] if len(names) == 2 else positive

    def list_classes(self, task: Task) -> list[str] | None:
        return list(_get_names(task))

    def decode_target(self, task: Task, batch: Batch, row: int) -> object:
        k = int(get_targets(batch)[row])
        return _get_names(task)[k] if k >= 0 else "unseen"

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        assert model.decision is not None
        rule = asdict(model.decision)
        return {
            "decision": {name: rule[name] for name in ("positive", "temperature", "weights", "threshold", "reject")}
        }

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        gallery = draw_classes(rows.task, rows.batch)
        blocks = analyse_classes(_get_names(rows.task), rows.shared, rows.model.decision or Decision())
        return [*blocks, *([] if gallery is None else [gallery])]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        y, p = get_targets(batch).cpu().numpy(), prediction.values.cpu().numpy()
        has_target = y != IGNORE
        right = ((p == y) & has_target).astype(np.float64)
        columns = {"right": right, "scored": has_target.astype(np.float64), "y": y, "p": p}
        if prediction.probabilities is None:
            return columns
        columns["confidence"] = pick_best(prediction).double().numpy()  # the probability of the predicted class
        if not 2 <= task.target.size <= MOST_RANKED_CLASSES:
            return columns
        q = prediction.probabilities.float().cpu().numpy()
        if task.target.size > 2:
            return columns | {"q": q}
        k = prediction.positive
        ranks = {"q": q[:, k], "is_positive": (y == k).astype(np.float64), "says_positive": (p == k) * 1.0}
        return columns | ranks

    def describe_test(self, task: Task, model: ForTask, columns: Columns) -> dict[str, Any]:
        names = _get_names(task)
        classes = describe_classes(names, columns["y"], columns["p"])
        return {"classes": classes, "decision": model.describe_decision(names)} if classes else {}

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        if prediction.probabilities is None:
            return super().build_results(task, prediction, probabilities, reject)
        values, best = task.decode(prediction.values, prediction.lengths), round_all(pick_best(prediction))
        results: list[Result] = [{"prediction": value, "probability": p} for value, p in zip(values, best, strict=True)]
        if probabilities:
            for result, row in zip(results, round_all(prediction.probabilities.cpu()), strict=True):
                result["probabilities"] = dict(zip(_get_names(task), row, strict=True))
        if reject:
            for result, p in zip(results, best, strict=True):
                result["is_unsure"] = p < reject
                result["prediction"] = None if p < reject else result["prediction"]
        return results


def _get_names(task: Task) -> tuple[str, ...]:
    assert isinstance(task.target, Classes)
    return task.target.names
