"""Models with their loss and predictions: one interface for every kind of task.

    loss, state = model(batch, state)     the sum of all losses, and the state for the next batch
    n = model.count_targets(batch).sum()  the number of targets in that sum
    model.predict(batch)                  values for `task.decode`, and probabilities for some kinds

Losses are sums, not means, so that the parts of a batch add up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.errors import UserError
from seqloom.lab.data.task import END, IGNORE, PAD, START, Batch, Features, Task, Values
from seqloom.lab.training.decision import Decision
from seqloom.lab.training.prediction_intervals import PredictionIntervals, get_targets
from seqloom.models.checks import can_check
from seqloom.models.decoding.ctc import greedy
from seqloom.models.segments import SegmentForecast


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


class ForClassify(ForTask):
    """Cross-entropy over classes.

    Attributes:
        decision: How scores become probabilities and a class, outside training.
        class_weights: (K,) weights of the classes in the training loss, or None.
    """

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__(model, smoothing)
        self.decision = Decision()
        self.class_weights: Tensor | None = None

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        """Return the scores of a batch; outside training they are calibrated."""
        z = super().scores(batch)[0]
        return (z if self.training else self.decision.calibrate(z)), None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch))

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        if self.class_weights is None or not self.training:
            return self._nats(scores, _y(batch), "sum")
        # weights of rows, not of F.cross_entropy, which would also weight the classes of label smoothing
        y = _y(batch)
        weights = self.class_weights.to(scores.device)[y.clamp(min=0)]
        return (weights * self._nats(scores, y)).sum()

    def count_targets(self, batch: Batch) -> Tensor:
        return _y(batch) >= 0

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        p = scores.float().softmax(-1)
        return Prediction(self.decision.choose(scores), probabilities=p, positive=self.decision.positive)


class ForMultilabel(ForTask):
    """Binary cross-entropy of each label; labels with a probability of at least a half are predicted.

    Labels are those of a row, scores (B, K), or of every step, scores (B, T, K).
    """

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)[..., :-1]
        wanted = y.clamp(min=0).float()
        if self.training:
            wanted = wanted * (1 - self.smoothing) + self.smoothing / 2
        nats = F.binary_cross_entropy_with_logits(scores.float(), wanted, reduction="none")
        return nats.masked_fill(y < 0, 0.0).flatten(1).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch)[..., :-1] >= 0).flatten(1).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        lengths = batch.lengths if scores.ndim > 2 else None
        return Prediction((scores >= 0).long(), lengths, scores.float().sigmoid())


class ForRegress(ForTask):
    """Squared error; NaN targets are left out."""

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)
        off = torch.where(y.isnan(), 0.0, scores.float() - y.nan_to_num())
        return off.square().flatten(1).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (~_y(batch).isnan()).flatten(1).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.float())


class ForForecast(ForRegress):
    """Squared error of a forecast.

    Attributes:
        order: Moves the targets to the front of the features, as Forecast expects; None if they are there.
        intervals: How wide the intervals of a forecast are; None before they have been fitted.
    """

    def __init__(self, model: nn.Module, order: list[int]) -> None:
        super().__init__(model)
        self.order = order if order != sorted(order) else None
        self.segment = model.segment if isinstance(model, SegmentForecast) else 0
        self.intervals: PredictionIntervals | None = None

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        x = batch.x if self.order is None else batch.x[..., self.order]
        if batch.future is not None:
            return self.model(x, batch.lengths, batch.future), None
        if self.segment:
            return self.model(*pad_to_segments(x, batch.lengths, self.segment)), None
        return self.model(x, batch.lengths), None

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        values = scores.float()
        if self.intervals is None:
            return Prediction(values)
        past = get_targets(self, batch, values.shape[2])
        return Prediction(values, bounds=self.intervals.find_bounds(values, past, batch.lengths))


def order_features(task: Task) -> list[int]:
    """Return the order of a forecast's features: targets, others, flags, and those that are known ahead."""
    assert isinstance(task.input, Features) and isinstance(task.target, Values)
    inputs, targets, flags, known = task.input.names, task.target.names, task.input.flags, task.input.known
    others = [name for name in inputs if name not in (*targets, *flags, *known)]
    names = [*targets, *others, *(name for name in flags if name not in known), *known]
    return [inputs.index(name) for name in names]


def pad_to_segments(x: Tensor, lengths: Tensor, w: int) -> tuple[Tensor, Tensor | None]:
    """Pad rows (B, T, D) at the front with their first value, so that lengths are multiples of w: (B, T', D)."""
    T = x.shape[1]
    if T % w == 0 and can_check(lengths) and bool((lengths == T).all()):
        return x, None  # the usual case: windows of a series; a layer is faster without lengths
    more = -lengths % w
    at = torch.arange(-(-T // w) * w, device=x.device) - more.unsqueeze(1)  # (B, T')
    return x.gather(1, at.clamp(0, T - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])), lengths + more


class ForTag(ForTask):
    """Cross-entropy of tags, or a CRF; a CRF scores whole sequences, so rows with unknown tags have no loss."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        letters = (batch.letters,) if self.model.reads_letters else ()
        return self.model(self._x(batch), batch.lengths, *letters), None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)
        if self.model.crf is None:
            return self._nats(scores, y).sum(1)
        nats = -self.model.crf.log_likelihood(scores, y.clamp(min=0), batch.lengths)
        return nats * self._are_tags_known(batch)

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1) if self.model.crf is None else batch.lengths * self._are_tags_known(batch)

    def _are_tags_known(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1) == batch.lengths

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        if self.model.crf is not None:
            return Prediction(self.model.crf.decode(scores, batch.lengths)[0].clamp(min=0), batch.lengths)
        return Prediction(scores.argmax(-1), batch.lengths, scores.float().softmax(-1))


class ForGenerate(ForTask):
    """Cross-entropy of the next token; `predict` returns each next token, `model.model.sample` continues a text."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0, carries: bool = False) -> None:
        super().__init__(model, smoothing)
        self.carries = carries

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, Tensor | State | None]:
        # without a carried state lengths are not needed: padding comes after all targets
        logits, state = self.model(batch.x, batch.lengths if self.carries else None, state=state)
        return logits, _detach(state) if self.carries else None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch)).sum(1)

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch), "sum")

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), batch.lengths)


def _detach(state: Tensor | State) -> Tensor | State:
    return state.detach() if isinstance(state, Tensor) else tuple(s.detach() for s in state)


class ForTranslate(ForTask):
    """Cross-entropy with teacher forcing; `predict` decodes greedily."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        y = _y(batch)
        read = torch.cat([torch.full_like(y[:, :1], START), y[:, :-1]], 1)
        return self.model(batch.x, read, batch.lengths)[0], None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)
        return self._nats(scores, y.masked_fill(y == PAD, IGNORE)).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch) != PAD).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), batch.y_lengths)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        limits = 2 * batch.lengths + 20  # per row, so that a translation does not depend on the rest of the batch
        decoded = self.model.greedy(batch.x, batch.lengths, max_length=int(limits.max()))
        return Prediction(decoded.tokens, torch.minimum(decoded.lengths, limits))


class ForTranscribe(ForTask):
    """CTC loss with PAD as the blank; a row too short for its target has no loss."""

    def row_losses(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        log_p, steps = scores
        y, n = _y(batch), batch.y_lengths
        assert n is not None
        return F.ctc_loss(log_p.float().transpose(0, 1), y, steps, n, PAD, reduction="none", zero_infinity=True)

    def count_targets(self, batch: Batch) -> Tensor:
        y, n = _y(batch), batch.y_lengths
        assert n is not None
        steps = (batch.lengths + self.model.stack - 1) // self.model.stack
        inside = torch.arange(1, max(1, y.shape[1]), device=y.device) < n.unsqueeze(1)
        repeats = ((y[:, 1:] == y[:, :-1]) & inside).sum(1)  # each needs a blank in between
        return n * (n + repeats <= steps)

    def choose(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Prediction:
        rows = [torch.tensor(row, dtype=torch.long) for row in greedy(*scores)]
        values = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=END)
        return Prediction(values, torch.tensor([len(row) for row in rows]))


def _y(batch: Batch) -> Tensor:
    """Return the targets of a batch."""
    if batch.y is None:
        raise UserError("these rows have no target, so they have no loss; include the target column")
    return batch.y
