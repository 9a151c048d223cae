"""Continue a text: the next token of every step."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.lab.data.task import END, IGNORE, Batch, Task
from seqloom.lab.kinds.columns import Columns, to_array
from seqloom.lab.kinds.for_task import ForTask, Prediction, get_targets
from seqloom.lab.kinds.kind import CAUSAL, Kind
from seqloom.lab.kinds.layers import build_input, build_layer, has_fixed_state
from seqloom.lab.kinds.results import Result
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.models.generate import Generate


class ForGenerate(ForTask):
    """Cross-entropy of the next token; `predict` returns each next token, `model.model.sample` continues a text."""

    streams = True

    def __init__(self, model: nn.Module, smoothing: float = 0.0, carries: bool = False) -> None:
        super().__init__(model, smoothing)
        self.carries = carries

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, Tensor | State | None]:
        # without a carried state lengths are not needed: padding comes after all targets
        logits, state = self.model(batch.x, batch.lengths if self.carries else None, state=state)
        if not self.carries:
            return logits, None
        return logits, state.detach() if isinstance(state, Tensor) else tuple(s.detach() for s in state)

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, get_targets(batch)).sum(1)

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, get_targets(batch), "sum")

    def count_targets(self, batch: Batch) -> Tensor:
        return (get_targets(batch) >= 0).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), batch.lengths)


class WithoutState(ForGenerate):
    """A language model that has no state."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        return self.model(batch.x), None


class GenerateKind(Kind):
    """Language models: cross-entropy of the next token."""

    name = "generate"
    topology = "N to N"
    padding = IGNORE
    models = CAUSAL
    predicts_text = True
    explains_last = True
    command = "generate"
    metrics = ("perplexity", "bits")
    baselines = ("unigram", "bigram")
    baseline_model = WithoutState
    continues_text = True

    def build(self, task: Task, settings: TrainSettings) -> ForTask:
        embed, width = build_input(task, settings)
        assert embed is not None
        layer = build_layer(settings, width)
        model = Generate(embed, layer, tied=settings.tied, dropout=settings.dropout)
        return ForGenerate(model, settings.label_smoothing, carries=has_fixed_state(layer))

    def is_per_step(self, task: Task) -> bool:
        return True

    def decode_target(self, task: Task, batch: Batch, row: int) -> object:
        return ""

    def build_step_results(self, task: Task, model: ForTask, scores: Tensor, probabilities: bool) -> list[Result]:
        """Return the likeliest next token of each step."""
        p, ids = scores.float().softmax(-1).max(-1)
        texts = ["" if k == END else task.decode(torch.tensor([[k]]))[0] for k in ids.tolist()]
        return [{"prediction": t, "probability": round(q, 6)} for t, q in zip(texts, p.tolist(), strict=True)]

    def score(self, task: Task, batch: Batch, prediction: Prediction) -> Columns:
        return score_tokens(batch, prediction, get_targets(batch) >= 0)


def score_tokens(batch: Batch, prediction: Prediction, has_target: Tensor) -> Columns:
    """Count the correctly predicted tokens of each row among those that have a target."""
    right = (prediction.values == get_targets(batch)) & has_target
    return {"right": to_array(right.sum(1)), "scored": to_array(has_target.sum(1)), "language": np.ones(len(batch))}
