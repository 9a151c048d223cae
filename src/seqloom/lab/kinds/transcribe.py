"""A text for a recording or a series."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.lab.data.task import END, PAD, Batch, Task
from seqloom.lab.kinds.columns import Columns, count_edits, join_words, name_edits
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import Kind
from seqloom.lab.kinds.layers import build_layer, normalise
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.models.decoding.ctc import greedy
from seqloom.models.transcribe import Transcribe


class ForTranscribe(ForTask):
    """CTC loss with PAD as the blank; a row too short for its target has no loss."""

    def row_losses(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        log_p, steps = scores
        y, n = get_targets(batch), batch.y_lengths
        assert n is not None
        return F.ctc_loss(log_p.float().transpose(0, 1), y, steps, n, PAD, reduction="none", zero_infinity=True)

    def count_targets(self, batch: Batch) -> Tensor:
        y, n = get_targets(batch), batch.y_lengths
        assert n is not None
        steps = (batch.lengths + self.model.stack - 1) // self.model.stack
        inside = torch.arange(1, max(1, y.shape[1]), device=y.device) < n.unsqueeze(1)
        repeats = ((y[:, 1:] == y[:, :-1]) & inside).sum(1)  # each needs a blank in between
        return n * (n + repeats <= steps)

    def choose(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Prediction:
        rows = [torch.tensor(row, dtype=torch.long) for row in greedy(*scores)]
        values = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=END)
        return Prediction(values, torch.tensor([len(row) for row in rows]))


class WithoutLoss(ForTranscribe):
    """A text for each recording, without probabilities; `model(x, lengths)` returns ids (B, S)."""

    def row_losses(self, scores: object, batch: Batch) -> Tensor:
        return torch.full((len(batch),), torch.nan)

    def count_targets(self, batch: Batch) -> Tensor:
        assert batch.y_lengths is not None
        return batch.y_lengths

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:  # type: ignore[override]
        return Prediction(scores, torch.full((len(batch),), scores.shape[1]))


class TranscribeKind(Kind):
    """A text for a recording or a series: CTC."""

    name = "transcribe"
    topology = "N to M"
    padding = PAD
    aligns_text = True
    metrics = ("cer", "wer", "exact")
    baselines = ("text",)
    baseline_model = WithoutLoss
    selecting = ("cer",)

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        layer = build_layer(settings, settings.stack * task.input.size)
        model = Transcribe(layer, task.target.size - 1, stack=settings.stack, dropout=settings.dropout)
        return ForTranscribe(normalise(model, settings))

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        true = [join_words(t) for t in task.decode(get_targets(batch), batch.y_lengths)]
        predicted = [join_words(p) for p in task.decode(prediction.values, prediction.lengths)]
        pairs = list(zip(true, predicted, strict=True))
        exact = np.array([float(t == p) for t, p in pairs])
        return {"exact": exact, "rows": np.ones(len(batch))} | name_edits([count_edits(t, p) for t, p in pairs])
