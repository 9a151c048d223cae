"""Baselines from counts: constant predictions, the most frequent tag of a token, unigrams and bigrams."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.lab.compare.data import iterate_split
from seqloom.lab.data.task import PAD, START, Batch, Task, Tokens
from seqloom.lab.training.for_task import (
    ForClassify,
    ForGenerate,
    ForRegress,
    ForTag,
    ForTask,
    ForTranscribe,
    ForTranslate,
    Prediction,
)

UNSEEN_COUNT = 1e-2  # added to every count, for what training lacks
BACKOFF = 0.1  # share of the unigram in a bigram probability
LARGEST_VOCABULARY = 3_000  # no bigram table is built for more tokens


class BaselineModule(nn.Module):
    """A module without trainable weights; `size` numbers were fitted. The empty parameter holds the device."""

    crf = None

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.size = size
        self.empty = nn.Parameter(torch.zeros(0), requires_grad=False)


class Constant(BaselineModule):
    """The same scores for every row."""

    scores: Tensor

    def __init__(self, scores: Tensor) -> None:
        super().__init__(scores.numel())
        self.register_buffer("scores", scores)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.scores.expand(len(x), *self.scores.shape)


class Unigram(BaselineModule):
    """log p(y) at every step, whatever came before: (K,)."""

    log_p: Tensor

    def __init__(self, p: Tensor) -> None:
        super().__init__(p.numel())
        self.register_buffer("log_p", p.log())

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.log_p.expand(*x.shape[:2], -1)


class Bigram(Unigram):
    """log p(y | token), a row for each token: (V, K)."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.log_p[x]


class CountedGenerate(ForGenerate):
    """A language model from counts, which has no state."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        return self.model(batch.x), None


class CountedTranslate(ForTranslate):
    """Predicts the target without reading the source."""

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[Tensor, None]:
        assert batch.y is not None
        return self.model(_shift(batch.y)), None

    def predict(self, batch: Batch) -> Prediction:
        return self.choose(self.scores(batch)[0], batch)


class ConstantText(ForTranscribe):
    """One text for every recording; it has no loss."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(BaselineModule(len(ids)))
        self.ids = torch.tensor(ids, dtype=torch.long)

    def scores(self, batch: Batch, state: Tensor | State | None = None) -> tuple[None, None]:
        return None, None

    def row_losses(self, scores: object, batch: Batch) -> Tensor:
        return torch.full((len(batch),), torch.nan)

    def choose(self, scores: object, batch: Batch) -> Prediction:
        return Prediction(self.ids.expand(len(batch), -1), torch.full((len(batch),), len(self.ids)))


def fit_majority(task: Task) -> ForTask:
    counts = torch.zeros(task.target.size)
    for batch in iterate_split(task, "train"):
        assert batch.y is not None
        counts += torch.bincount(batch.y[batch.y >= 0], minlength=task.target.size)
    return ForClassify(Constant(((counts + 1) / (counts + 1).sum()).log()))


def fit_mean(task: Task) -> ForTask:
    total, n = torch.zeros(task.target.size), torch.zeros(task.target.size)
    for batch in iterate_split(task, "train"):
        assert batch.y is not None
        total, n = total + batch.y.nan_to_num().sum(0), n + (~batch.y.isnan()).sum(0)
    return ForRegress(Constant(total / n.clamp(min=1)))


def fit_text(task: Task) -> ForTask:
    """Predict the most frequent text."""
    texts: Counter[tuple[int, ...]] = Counter()
    for batch in iterate_split(task, "train"):
        assert batch.y is not None and batch.y_lengths is not None
        for row, n in zip(batch.y.tolist(), batch.y_lengths.tolist(), strict=True):
            texts[tuple(row[:n])] += 1
    return ConstantText(list(texts.most_common(1)[0][0]))


def fit_tag(task: Task) -> ForTask:
    return ForTag(Unigram(_unigram(_count_pairs(task, 1))))


def fit_tag_of_token(task: Task) -> ForTask:
    assert isinstance(task.input, Tokens)
    return ForTag(Bigram(_back_off(_count_pairs(task, task.input.size))))


def fit_unigram(task: Task) -> ForTask:
    return _language_model(task, Unigram(_unigram(_count_pairs(task, 1))))


def fit_bigram(task: Task) -> ForTask:
    return _language_model(task, Bigram(_back_off(_count_pairs(task, task.target.size))))


def can_fit_bigram(task: Task) -> bool:
    return task.target.size <= LARGEST_VOCABULARY


def _language_model(task: Task, module: BaselineModule) -> ForTask:
    return CountedTranslate(module) if task.kind == "translate" else CountedGenerate(module)


def _shift(y: Tensor) -> Tensor:
    """Return what a decoder reads: START, then each token but the last."""
    return torch.cat([torch.full_like(y[:, :1], START), y[:, :-1]], 1)


def _count_pairs(task: Task, rows: int) -> Tensor:
    """Count (rows, K) how often each y occurs with each token; with one row, how often it occurs at all."""
    K = task.target.size
    counts = torch.zeros(rows * K)
    for batch in iterate_split(task, "train"):
        y = batch.y
        assert y is not None
        translate = task.kind == "translate"
        x = _shift(y) if translate else batch.x
        real = y != PAD if translate else y >= 0
        first = x[real] if rows > 1 else torch.zeros_like(y[real])
        counts += torch.bincount(first * K + y[real], minlength=rows * K)
    return counts.view(rows, K)


def _unigram(counts: Tensor) -> Tensor:
    p = counts.sum(0) + UNSEEN_COUNT
    return p / p.sum()


def _back_off(counts: Tensor) -> Tensor:
    """Return (1 - b) c(x, y) / c(x) + b p(y), and p(y) alone for an unseen x."""
    unigram, seen = _unigram(counts), counts.sum(1, keepdim=True)
    return torch.where(seen > 0, (1 - BACKOFF) * counts / seen.clamp(min=1) + BACKOFF * unigram, unigram)
