"""One tag for each step."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import IGNORE, Batch, Tags, Task, Tokens
from seqloom.lab.kinds.columns import Columns
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import TAG, Kind, ScoredRows
from seqloom.lab.kinds.layers import build_input, build_timed_layer, normalise
from seqloom.lab.kinds.pages.class_analysis import draw_confusions, tabulate_classes
from seqloom.lab.kinds.results import Result, pick_best, round_all
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.report.page import PageBlock
from seqloom.lab.stats.spans import count_spans
from seqloom.models.characters import Characters
from seqloom.models.tag import Tag

LETTER_EMBEDDING = 25  # width of a letter's embedding, as in Lample et al. 2016


class ForTag(ForTask):
    """Cross-entropy of tags, or a CRF; a CRF scores whole sequences, so rows with unknown tags have no loss."""

    streams = True

    @property
    def output(self) -> str:  # type: ignore[override]
        """The name of what `finish` returns."""
        return "probabilities" if self.model.crf is None else "scores"

    def finish(self, scores: Tensor) -> Tensor:
        return scores.float() if self.model.crf is not None else scores.float().softmax(-1)

    def invert_output(self, output: Tensor) -> Tensor:
        return output if self.model.crf is not None else output.log()

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        letters = (batch.letters,) if self.model.reads_letters else ()
        return self.model(self._x(batch), batch.lengths, *letters), None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = get_targets(batch)
        if self.model.crf is None:
            return self._nats(scores, y).sum(1)
        nats = -self.model.crf.log_likelihood(scores, y.clamp(min=0), batch.lengths)
        return nats * self._are_tags_known(batch)

    def count_targets(self, batch: Batch) -> Tensor:
        return (
            (get_targets(batch) >= 0).sum(1) if self.model.crf is None else batch.lengths * self._are_tags_known(batch)
        )

    def _are_tags_known(self, batch: Batch) -> Tensor:
        return (get_targets(batch) >= 0).sum(1) == batch.lengths

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        if self.model.crf is not None:
            return Prediction(self.model.crf.decode(scores, batch.lengths)[0].clamp(min=0), batch.lengths)
        return Prediction(scores.argmax(-1), batch.lengths, scores.float().softmax(-1))


class TagKind(Kind):
    """One tag for each step: cross-entropy of each, or a CRF."""

    name = "tag"
    topology = "N to N"
    has_classes = True
    noun = "tag"
    padding = IGNORE
    models = TAG
    decoder = "tags"
    metrics = ("span_f1", "accuracy")
    baselines = ("tag", "tag of token", "window", "window with crf")
    baseline_model = ForTag
    use = "Tags"
    pipeline = "token-classification"
    selecting = ("span_f1", "accuracy")
    reads_timespans = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        timed = self.has_timespans(task)
        embed, width = build_input(task, settings, timed)
        characters = None
        if isinstance(task.input, Tokens) and task.input.alphabet and settings.letters:
            characters = Characters(task.input.alphabet, LETTER_EMBEDDING, settings.letters, kind="cnn")
            width += settings.letters
        model = Tag(
            build_timed_layer(settings, width, timed),
            task.target.size,
            embed=embed,
            characters=characters,
            dropout=settings.dropout,
            crf=settings.crf,
        )
        return ForTag(normalise(model, settings), settings.label_smoothing)

    def check_settings(self, task: Task, settings: TrainSettings) -> None:
        if settings.crf and settings.label_smoothing:
            raise UserError(
                f"label_smoothing={settings.label_smoothing} does nothing with crf=True, "
                "which scores whole sequences of tags; leave one of them out"
            )

    def list_metrics(self, task: Task) -> list[str]:
        return [name for name in self.metrics if name != "span_f1" or _has_spans(_get_target(task))]

    def is_per_step(self, task: Task) -> bool:
        return True

    def decode_target(self, task: Task, batch: Batch, row: int) -> object:
        return task.decode(get_targets(batch)[row : row + 1].clamp(min=0), batch.lengths[row : row + 1])[0]

    def describe_export(self, task: Task, model: ForTask) -> dict[str, Any]:
        crf = model.model.crf
        return {} if crf is None else {"crf": {name: getattr(crf, name).tolist() for name in "Abc"}}

    def analyse_errors(self, rows: ScoredRows) -> list[PageBlock]:
        names, ys, ps = _get_target(rows.task).names, [], []
        for batch in rows.task.batches("test", batch=rows.batch):
            tags = get_targets(batch)
            ys.append(tags[tags >= 0].numpy())
            ps.append(rows.model.predict(batch).values[tags >= 0].numpy())
        y, p = np.concatenate(ys), np.concatenate(ps)
        return [tabulate_classes(names, y, p), draw_confusions(names, y, p)]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        target = _get_target(task)
        names = target.names
        y, p = get_targets(batch).cpu().numpy(), prediction.values.cpu().numpy()
        has_target = y != IGNORE
        scored = has_target & ~np.isin(y, [names.index(tag) for tag in target.unscored if tag in names])
        columns = {"right": ((p == y) & scored).sum(1).astype(np.float64), "scored": scored.sum(1).astype(np.float64)}
        if _has_spans(target):
            named = [*names, "B-<unseen>"]  # index -1 is UNSEEN: a span that no model can predict
            each = [
                count_spans([named[k] for k in row_y[keep]], [named[k] for k in row_p[keep]])
                for row_y, row_p, keep in zip(y, p, has_target, strict=True)
            ]
            columns |= dict(
                zip(("spans_right", "spans_predicted", "spans_true"), np.array(each, dtype=np.float64).T, strict=True)
            )
        return columns

    def build_results(
        self, task: Task, prediction: Prediction, probabilities: bool, reject: float = 0.0
    ) -> list[Result]:
        if prediction.probabilities is None:
            return super().build_results(task, prediction, probabilities, reject)
        values, best = task.decode(prediction.values, prediction.lengths), pick_best(prediction)
        ends: list[Any] = prediction.lengths.tolist() if prediction.lengths is not None else [None] * len(values)
        return [
            {"prediction": value, "probability": round_all(row[:end])}
            for value, row, end in zip(values, best, ends, strict=True)
        ]


def _get_target(task: Task) -> Tags:
    assert isinstance(task.target, Tags)
    return task.target


def _has_spans(target: Tags) -> bool:
    return any(name.startswith("B-") for name in target.names)
