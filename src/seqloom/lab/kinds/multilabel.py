"""Any number of labels for each row, or for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Labels, Task
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import Kind, ScoredRows
from seqloom.lab.kinds.layers import build_input, build_reader, build_timed_layer, looks_ahead, normalise
from seqloom.lab.kinds.pages.class_analysis import tabulate_labels
from seqloom.lab.kinds.results import Result, round_all
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock
from seqloom.lab.stats.class_metrics import describe_labels
from seqloom.layers import registry
from seqloom.models.classify import Classify
from seqloom.models.tag import Tag

FIRST_LOG_ODDS = -2.0  # initial log odds of every label: without it, random guesses would have a fair F1


class ForMultilabel(ForTask):
    """Binary cross-entropy of each label; labels with a probability of at least a half are predicted.

    Labels are those of a row, scores (B, K), or of every step, scores (B, T, K).
    """

    streams = True

    def finish(self, scores: Tensor) -> Tensor:
        return scores.float().sigmoid()

    def invert_output(self, output: Tensor) -> Tensor:
        return torch.logit(output.double()).float()

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = get_targets(batch)[..., :-1]
        wanted = y.clamp(min=0).float()
        if self.training:
            wanted = wanted * (1 - self.smoothing) + self.smoothing / 2
        nats = F.binary_cross_entropy_with_logits(scores.float(), wanted, reduction="none")
        return nats.masked_fill(y < 0, 0.0).flatten(1).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (get_targets(batch)[..., :-1] >= 0).flatten(1).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        lengths = batch.lengths if scores.ndim > 2 else None
        return Prediction((scores >= 0).long(), lengths, scores.float().sigmoid())


class MultilabelKind(Kind):
    """Any number of labels: binary cross-entropy of each."""

    name = "multilabel"
    topology = "N to 1"
    noun = "label"
    separator = "|"  # names of labels may contain blanks
    decoder = "labels"
    metrics = ("macro_f1", "micro_f1", "exact", "loss")
    baselines = ("frequent labels", "labels of step", "labels", "labels of letters")
    baseline_model = ForMultilabel
    use = "Finds the labels of"
    pipeline = "text-classification"
    selecting = ("macro_f1",)
    is_per_row = True
    reads_timespans = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        timed = self.has_timespans(task)
        model: Classify | Tag
        if _get_target(task).per_step:
            embed, width = build_input(task, settings, timed)
            layer = build_timed_layer(settings, width, timed)
            model = Tag(layer, task.target.size, embed=embed, dropout=settings.dropout)
        else:
            model = build_reader(task, settings, timed, pools=True, outputs=task.target.size)
        with torch.no_grad():  # all labels are improbable before training (Lin et al. 2017, section 3.3)
            model.head.bias.fill_(FIRST_LOG_ODDS)
        return ForMultilabel(normalise(model, settings), settings.label_smoothing)

    def check_settings(self, task: Task, settings: TrainSettings) -> None:
        self.check_sight(task, settings.model)

    def must_not_look_ahead(self, task: Task) -> bool:
        return _get_target(task).shifted

    def check_sight(self, task: Task, model: str) -> None:
        """Raise a UserError if a layer looks ahead and the labels of a step are the input of the next one."""
        if self.must_not_look_ahead(task) and looks_ahead(model):
            other = "transformer" if model == "linformer" else model.removeprefix(registry.BI_PREFIX)
            raise UserError(
                f"{model} looks ahead, and the labels of a step are the input of the next one; use {other} instead"
            )

    def is_per_step(self, task: Task) -> bool:
        return _get_target(task).per_step

    def list_classes(self, task: Task) -> list[str] | None:
        return list(_get_target(task).names)

    def decode_target(self, task: Task, batch: Batch, row: int) -> object:
        y = get_targets(batch)[row : row + 1, ..., :-1].clamp(min=0)
        return task.decode(y, batch.lengths[row : row + 1] if self.is_per_step(task) else None)[0]

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        return {"per_step": _get_target(task).per_step}

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        return [tabulate_labels(_get_target(rows.task).names, rows.shared)]

    def write_value(self, task: Task, value: Any) -> str:  # noqa: ANN401
        steps = value if self.is_per_step(task) else [value]  # names may contain blanks
        return " | ".join(", ".join(labels) or "-" for labels in steps)

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        """Return how often each label is true, predicted and correct in each row (B, K), and counts over all labels.

        The number of true labels includes those that training lacks. A step, or a row without steps, is exact if all of
        its labels are correct.
        """
        y, p = get_targets(batch).cpu().numpy(), prediction.values.cpu().numpy()
        y, p = (v if v.ndim == 3 else v[:, None] for v in (y, p))  # (B, T, K + 1) and (B, T, K)
        known = y[..., -1] >= 0
        y, p = y * known[..., None], p * known[..., None]
        true, exact = y[..., :-1], ((y[..., :-1] == p).all(2) & (y[..., -1] == 0) & known).sum(1)
        by_label = {"label_true": true.sum(1), "label_predicted": p.sum(1), "label_right": (true * p).sum(1)}
        counts = {
            "labels_right": by_label["label_right"].sum(1),
            "labels_predicted": by_label["label_predicted"].sum(1),
        }
        counts |= {"labels_true": y.sum((1, 2)), "exact": exact, "rows": known.sum(1)}
        return by_label | {name: column.astype(np.float64) for name, column in counts.items()}

    def describe_test(self, task: Task, model: ForTask, columns: Columns) -> dict[str, Any]:
        labels = describe_labels(_get_target(task).names, columns)
        return {"labels": labels} if labels else {}

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        """Return the labels of each row, the most probable first, with their probabilities."""
        if prediction.probabilities is None:
            return super().build_results(task, prediction, probabilities, reject)
        target, values = _get_target(task), task.decode(prediction.values, prediction.lengths)
        results: list[Result] = []
        for names, row in zip(values, round_all(prediction.probabilities.cpu()), strict=True):
            if target.per_step:
                each = [_order_labels(target, *step) for step in zip(names, row, strict=False)]  # without padding
                results.append({"prediction": [one for one, _ in each], "probability": [p for _, p in each]})
                continue
            ordered, p = _order_labels(target, names, row)
            results.append({"prediction": ordered, "probability": p})
            if probabilities:
                results[-1]["probabilities"] = dict(zip(target.names, row, strict=True))
        return results


def _get_target(task: Task) -> Labels:
    assert isinstance(task.target, Labels)
    return task.target


def _order_labels(target: Labels, names: list[str], row: list[float]) -> tuple[list[str], list[float]]:
    """Return labels, the most probable first, and their probabilities."""
    p = dict(zip(target.names, row, strict=True))
    ordered = sorted(names, key=lambda name: -p[name])
    return ordered, [p[name] for name in ordered]
