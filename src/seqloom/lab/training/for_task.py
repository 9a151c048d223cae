"""Models as a trainer sees them: every kind of task through one surface.

    loss, state = model(batch, state)     the sum of all losses, and what the next batch goes on from
    n = model.count_targets(batch).sum()         how many targets that sum is over
    model.predict(batch)                  what `task.decode` takes, and probabilities where there are any

Sums and counts, rather than means, so that parts of a batch add up to the whole exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.task import END, IGNORE, PAD, START, Batch
from seqloom.models.checks import can_check
from seqloom.models.decoding.ctc import greedy


@dataclass(frozen=True, eq=False)
class Prediction:
    """What a model chose: `task.decode(values, lengths)`.

    probabilities   classify (B, K), tag (B, T, K) without a CRF; None elsewhere
    """

    values: Tensor
    lengths: Tensor | None = None
    probabilities: Tensor | None = None


class ForTask(nn.Module):
    """A model, its loss and its predictions. Subclasses, one for each kind, write the methods that raise here.

    `smoothing` of labels is for training alone: in eval mode a loss is the true one.
    """

    timed = False  # whether the time between steps goes in, too
    carries = False  # whether a batch may go on from the state that the one before ended in

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model: Any = model
        self.smoothing = smoothing

    def scores(self, batch: Batch, state: Any = None) -> tuple[Any, Any]:
        """What the model says of a batch, and the state it ends in."""
        return self.model(self._x(batch), batch.lengths), None

    def _x(self, batch: Batch) -> Tensor:
        """The input; with time stamps that are irregular, the time since the step before is one more feature."""
        if not self.timed:
            return batch.x
        spans = torch.ones_like(batch.x[..., 0]) if batch.timespans is None else batch.timespans
        return torch.cat([batch.x, spans.to(batch.x).unsqueeze(-1)], -1)

    def row_losses(self, scores: Any, batch: Batch) -> Tensor:
        """(B,) the loss of each row, summed over its targets."""
        raise NotImplementedError

    def count_targets(self, batch: Batch) -> Tensor:
        """(B,) how many targets of each row have a loss."""
        raise NotImplementedError

    def choose(self, scores: Any, batch: Batch) -> Prediction:
        """The prediction that these scores make."""
        raise NotImplementedError

    def forward(self, batch: Batch, state: Any = None) -> tuple[Tensor, Any]:
        scores, state = self.scores(batch, state)
        return self.total_loss(scores, batch), state

    def total_loss(self, scores: Any, batch: Batch) -> Tensor:
        """The sum of `each`; in one call where there is one, for a small model's step is made of calls."""
        return self.row_losses(scores, batch).sum()

    @torch.no_grad()
    def predict(self, batch: Batch) -> Prediction:
        return self.choose(self.scores(batch)[0], batch)

    def _nats(self, scores: Tensor, y: Tensor, reduction: str = "none") -> Tensor:
        """Cross-entropy of scores (B, ..., K) with y (B, ...), 0 where y has no loss."""
        y = y if self.training else y.masked_fill(y < 0, IGNORE)  # what was never seen is not in training
        smoothing = self.smoothing if self.training else 0.0
        return F.cross_entropy(scores.movedim(-1, 1).float(), y, reduction=reduction, label_smoothing=smoothing)


class ForClassify(ForTask):
    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch))

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch), "sum")

    def count_targets(self, batch: Batch) -> Tensor:
        return _y(batch) >= 0

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), probabilities=scores.float().softmax(-1))


class ForRegress(ForTask):
    """The squared error; a target that is NaN has none."""

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)
        off = torch.where(y.isnan(), 0.0, scores.float() - y.nan_to_num())
        return off.square().flatten(1).sum(1)

    def count_targets(self, batch: Batch) -> Tensor:
        return (~_y(batch).isnan()).flatten(1).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.float())


class ForForecast(ForRegress):
    """`order` brings the targets to the front of the features, where Forecast wants them."""

    def __init__(self, model: nn.Module, order: list[int]) -> None:
        super().__init__(model)
        self.order = order if order != sorted(order) else None
        self.segment: int = getattr(model, "segment", 0)

    def scores(self, batch: Batch, state: Any = None) -> tuple[Tensor, None]:
        x = batch.x if self.order is None else batch.x[..., self.order]
        if self.segment:
            return self.model(*_level(x, batch.lengths, self.segment)), None
        return self.model(x, batch.lengths), None


def _level(x: Tensor, lengths: Tensor, w: int) -> tuple[Tensor, Tensor | None]:
    """(B, T, D) -> (B, T', D) and lengths that are multiples of w: a row begins with its first value, repeated."""
    T = x.shape[1]
    if T % w == 0 and can_check(lengths) and bool((lengths == T).all()):
        return x, None  # as all windows of a series are; without lengths a layer is faster
    more = -lengths % w
    at = torch.arange(-(-T // w) * w, device=x.device) - more.unsqueeze(1)  # (B, T')
    return x.gather(1, at.clamp(0, T - 1).unsqueeze(-1).expand(-1, -1, x.shape[2])), lengths + more


class ForTag(ForTask):
    """A row whose tags are not all known has no loss under a CRF, which scores whole chains."""

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        y = _y(batch)
        if self.model.crf is None:
            return self._nats(scores, y).sum(1)
        nats = -self.model.crf.log_likelihood(scores, y.clamp(min=0), batch.lengths)
        return nats * self._known(batch)

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1) if self.model.crf is None else batch.lengths * self._known(batch)

    def _known(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1) == batch.lengths

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        if self.model.crf is not None:
            return Prediction(self.model.crf.decode(scores, batch.lengths)[0].clamp(min=0), batch.lengths)
        return Prediction(scores.argmax(-1), batch.lengths, scores.float().softmax(-1))


class ForGenerate(ForTask):
    """Here `predict` foresees each next token; `model.model.sample` and `search` go on from a text."""

    def __init__(self, model: nn.Module, smoothing: float = 0.0, carries: bool = False) -> None:
        super().__init__(model, smoothing)
        self.carries = carries

    def scores(self, batch: Batch, state: Any = None) -> tuple[Tensor, Any]:
        # without a state to hand on lengths do not matter: the padding comes after all that counts
        logits, state = self.model(batch.x, batch.lengths if self.carries else None, state=state)
        return logits, _detached(state) if self.carries else None

    def row_losses(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch)).sum(1)

    def total_loss(self, scores: Tensor, batch: Batch) -> Tensor:
        return self._nats(scores, _y(batch), "sum")

    def count_targets(self, batch: Batch) -> Tensor:
        return (_y(batch) >= 0).sum(1)

    def choose(self, scores: Tensor, batch: Batch) -> Prediction:
        return Prediction(scores.argmax(-1), batch.lengths)


def _detached(state: Any) -> Any:
    return state.detach() if isinstance(state, Tensor) else tuple(s.detach() for s in state)


class ForTranslate(ForTask):
    """Scores read the true target so far; `predict` reads its own, the likeliest token each time."""

    def scores(self, batch: Batch, state: Any = None) -> tuple[Tensor, None]:
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
        limits = 2 * batch.lengths + 20  # each row's own: what is said of it must not depend on those beside it
        found = self.model.greedy(batch.x, batch.lengths, max_length=int(limits.max()))
        return Prediction(found.tokens, torch.minimum(found.lengths, limits))


class ForTranscribe(ForTask):
    """CTC's loss; PAD is the blank. A row too short for its target has none."""

    def row_losses(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        log_p, steps = scores
        y, n = _y(batch), batch.y_lengths
        assert n is not None
        return F.ctc_loss(log_p.float().transpose(0, 1), y, steps, n, PAD, reduction="none", zero_infinity=True)

    def count_targets(self, batch: Batch) -> Tensor:
        y, n = _y(batch), batch.y_lengths
        assert n is not None
        steps = (batch.lengths + self.model.stack - 1) // self.model.stack
        asked = torch.arange(1, max(1, y.shape[1]), device=y.device) < n.unsqueeze(1)
        repeats = ((y[:, 1:] == y[:, :-1]) & asked).sum(1)  # each takes a blank in between
        return n * (n + repeats <= steps)

    def choose(self, scores: tuple[Tensor, Tensor], batch: Batch) -> Prediction:
        found = [torch.tensor(row, dtype=torch.long) for row in greedy(*scores)]
        values = nn.utils.rnn.pad_sequence(found, batch_first=True, padding_value=END)
        return Prediction(values, torch.tensor([len(row) for row in found]))


def _y(batch: Batch) -> Tensor:
    if batch.y is None:
        raise UserError("these rows have no target, so there is no loss; give the target's column too")
    return batch.y
