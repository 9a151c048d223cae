"""Models with their loss and predictions: one interface for every kind of task.

    loss, state = model(batch, state)     the sum of all losses, and the state for the next batch
    n = model.count_targets(batch).sum()  the number of targets in that sum
    model.predict(batch)                  values for `task.decode`, and probabilities for some kinds

Losses are sums, not means, so that the parts of a batch add up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import IGNORE, Batch, Task
from seqloom.lab.kinds.decision import Decision
from seqloom.lab.kinds.settings import TrainSettings


@dataclass(frozen=True, eq=False)
class Prediction:
    """The output of a model: `task.decode(values, lengths)` turns it into words and units of the data.

    `probabilities` are (B, K) for classify and multilabel, and (B, T, K) for tag without a CRF; otherwise None.
    `positive` is the positive one of two classes. `bounds` are the ends of a forecast's intervals by level in percent,
    in the shape of the values; infinite if there is no interval.
    """

    values: Tensor
    lengths: Tensor | None = None
    probabilities: Tensor | None = None
    positive: int = 1
    bounds: dict[int, tuple[Tensor, Tensor]] | None = None


class ForTask(nn.Module):
    """A model with its loss and predictions; one subclass for each kind of task.

    Label `smoothing` applies in training mode only.
    """

    timed = False  # whether the time between steps is an input feature
    attributed = False  # whether attributes of the row are input features of every step
    carries = False  # whether a batch may start from the last state of the previous one
    decision: Decision | None = None  # how scores become probabilities and a class, of a classifier
    streams = False  # whether the layer may run step by step, with an output after each
    why_whole = ""  # why a model that does not stream needs the whole row
    output = "probabilities"  # the name of what `finish` returns

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model: Any = model
        self.smoothing = smoothing

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Any, Tensor | State | None]:
        """Return the scores of a batch and the last state."""
        return self.model(self._x(batch), batch.lengths), None

    def _x(self, batch: Batch) -> Tensor:
        """Return the input; with irregular time stamps, the time since the previous step is the last feature.

        Attributes (B, A) come before it, (B, T, ... + A); ids are then the first feature (see `EmbedWithAttributes`).
        """
        if self.attributed and batch.attributes is not None:
            batch = replace(batch, x=join_attributes(batch.x, batch.attributes))
        if not self.timed:
            return batch.x
        spans = torch.ones_like(batch.x[..., 0]) if batch.timespans is None else batch.timespans
        return torch.cat([batch.x, spans.to(batch.x).unsqueeze(-1)], -1)

    def row_losses(self, scores: Any, batch: Batch) -> Tensor:  # noqa: ANN401  # what `scores` of the subclass returned
        """Return the loss of each row, summed over its targets, (B,)."""
        raise NotImplementedError

    def count_targets(self, batch: Batch) -> Tensor:
        """Return how many targets of each row have a loss, (B,)."""
        raise NotImplementedError

    def choose(self, scores: Any, batch: Batch) -> Prediction:  # noqa: ANN401  # as in row_losses
        """Return the prediction that follows from scores."""
        raise NotImplementedError

    def prepare(self, task: Task, settings: TrainSettings) -> None:
        """Compute from the training rows what the loss needs, before the model is trained or fitted."""

    def fit_decision(self, task: Task, settings: TrainSettings) -> None:
        """Fit what a trained model needs besides its weights, on the validation rows."""

    def store_decision(self, folder: Path) -> None:
        """Write the result of `fit_decision` to the folder of the model's run."""

    def restore_decision(self, folder: Path, task: Task) -> None:
        """Read what `store_decision` wrote, and check that it fits the task."""

    def describe_decision(self, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """Return the decision rule as JSON, {} for models without one; classes by name if `names` are given."""
        return {}

    def finish(self, scores: Tensor) -> Tensor:
        """Return the output of an exported model for scores: probabilities, CRF scores or standardised values."""
        return scores.float().softmax(-1)

    def invert_output(self, output: Tensor) -> Tensor:
        """Return scores that have this output."""
        return output.log()

    def compute_output(self, batch: Batch) -> Tensor:
        """Return the output of an exported model for a batch."""
        return self.finish(self.scores(batch)[0])

    def forward(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, Tensor | State | None]:
        scores, state = self.scores(batch, state)
        return self.total_loss(scores, batch), state

    def total_loss(self, scores: Any, batch: Batch) -> Tensor:  # noqa: ANN401  # as in row_losses
        """Return the sum of `row_losses`; subclasses use a single call, which is faster for small models."""
        return self.row_losses(scores, batch).sum()

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        """Return the prediction of a batch."""
        return self.choose(self.scores(batch)[0], batch)

    def _nats(self, scores: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Return the cross-entropy of scores (B, ..., K) with y (B, ...); 0 for targets without a loss."""
        y = y if self.training else y.masked_fill(y < 0, IGNORE)  # training has no unseen classes
        smoothing = self.smoothing if self.training else 0.0
        return F.cross_entropy(scores.movedim(-1, 1).float(), y, reduction=reduction, label_smoothing=smoothing)


def join_attributes(x: Tensor, attributes: Tensor) -> Tensor:
    """Join ids (B, T) or features (B, T, D) with attributes (B, A) of the rows: (B, T, 1 + A) or (B, T, D + A)."""
    steps = attributes.unsqueeze(1).expand(-1, x.shape[1], -1)
    return torch.cat([x.unsqueeze(-1).to(attributes) if x.ndim == 2 else x, steps], -1)


def get_targets(batch: Batch) -> Tensor:
    """Return the targets of a batch."""
    if batch.y is None:
        raise UserError("these rows have no target, so they have no loss; include the target column")
    return batch.y
