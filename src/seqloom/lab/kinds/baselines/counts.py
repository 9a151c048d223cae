"""Baselines from counts: constant predictions, the most frequent tag of a token, unigrams and bigrams."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

from seqloom.lab.data.task import PAD, Features, Labels, Task
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.kinds.forms import FORMS
from seqloom.lab.kinds.translate import shift_target

UNSEEN_COUNT = 1e-2  # added to every count, for what training lacks
BACKOFF = 0.1  # share of the unigram in a bigram probability
LARGEST_VOCABULARY = 3_000  # no bigram table is built for more tokens


class Constant(BaselineModule):
    """The same scores for every row."""

    scores: Tensor
    fitted = ("scores",)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.scores.expand(x.shape[0], *self.scores.shape)


class Unigram(BaselineModule):
    """log p(y) at every step, independent of earlier steps: (K,)."""

    log_p: Tensor
    fitted = ("log_p",)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.log_p.expand(*x.shape[:2], -1)


class Bigram(Unigram):
    """log p(y | token), a row for each token: (V, K)."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.log_p[x]


class LabelsOfStep(BaselineModule):
    """Log odds (2, K) of a label at a step whose input lacks or has the label; `at` has its feature, or -1."""

    log_odds: Tensor
    at: Tensor
    fitted = ("log_odds",)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return torch.where(read_labels(x, self.at) > 0, self.log_odds[1], self.log_odds[0])


class ConstantText(BaselineModule):
    """One text for every recording: its ids (S,)."""

    ids: Tensor
    fitted = ("ids",)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        return self.ids.expand(x.shape[0], -1)


def fit_majority(task: Task) -> ForTask:
    counts = torch.zeros(task.target.size)
    for batch in iterate_split(task, "train"):
        y = get_targets(batch)
        counts += torch.bincount(y[y >= 0], minlength=task.target.size)
    return wrap(task, Constant(scores=((counts + 1) / (counts + 1).sum()).log()))


def fit_frequent_labels(task: Task) -> ForTask:
    """Predict the most frequent labels for every row, as many as a row has on average, but at least one."""
    counts, n = torch.zeros(task.target.size), 0
    for batch in iterate_split(task, "train"):
        y = get_targets(batch)[..., :-1].flatten(0, -2)  # the labels of rows or of steps
        y = y[y[:, 0] >= 0]
        counts, n = counts + y.sum(0), n + len(y)
    log_odds = ((counts + 1) / (n + 2)).logit()
    frequent = counts.topk(max(1, round(float(counts.sum()) / max(1, n)))).indices
    log_odds[frequent] = log_odds[frequent].clamp(min=0.0)  # a probability of a half is predicted
    per_step = isinstance(task.target, Labels) and task.target.per_step
    return wrap(task, Unigram(log_p=log_odds) if per_step else Constant(scores=log_odds))


def fit_labels_of_step(task: Task) -> ForTask:
    """Predict each label from whether the input step has a label of the same name."""
    assert isinstance(task.target, Labels) and isinstance(task.input, Features)
    source = [task.input.names.index(name) if name in task.input.names else -1 for name in task.target.names]
    at = torch.tensor(source)
    counts = torch.full((2, 2, task.target.size), 0.5)  # (input has the label, row has the label, label)
    for batch in iterate_split(task, "train"):
        known = get_targets(batch)[..., 0] >= 0
        y, x = get_targets(batch)[known][:, :-1], read_labels(batch.x[known], at)
        for i in range(2):
            for j in range(2):
                counts[i, j] += ((x == i) & (y == j)).sum(0)
    return wrap(task, LabelsOfStep(log_odds=(counts[:, 1] / counts[:, 0]).log(), at=at))


def read_labels(x: Tensor, at: Tensor) -> Tensor:
    """Return features (..., D) as labels (..., K), 0 or 1; `at` has the feature of each label, or -1."""
    return ((x[..., at.clamp(min=0)] > 0) & (at >= 0)).long()


def fit_mean(task: Task) -> ForTask:
    total, n = torch.zeros(task.target.size), torch.zeros(task.target.size)
    for batch in iterate_split(task, "train"):
        total, n = total + get_targets(batch).nan_to_num().sum(0), n + (~get_targets(batch).isnan()).sum(0)
    return wrap(task, Constant(scores=total / n.clamp(min=1)))


def fit_text(task: Task) -> ForTask:
    """Predict the most frequent text."""
    texts: Counter[tuple[int, ...]] = Counter()
    for batch in iterate_split(task, "train"):
        assert batch.y is not None and batch.y_lengths is not None
        for row, n in zip(batch.y.tolist(), batch.y_lengths.tolist(), strict=True):
            texts[tuple(row[:n])] += 1
    return wrap(task, ConstantText(ids=torch.tensor(texts.most_common(1)[0][0], dtype=torch.long)))


def fit_unigram(task: Task) -> ForTask:
    return wrap(task, Unigram(log_p=_unigram(_count_pairs(task, 1)).log()))


def fit_bigram(task: Task) -> ForTask:
    """Predict from the token before a target token, or from the token that is tagged."""
    rows = task.input.size if task.target.as_target == "tags" else task.target.size
    return wrap(task, Bigram(log_p=_back_off(_count_pairs(task, rows)).log()))


def _count_pairs(task: Task, rows: int) -> Tensor:
    """Count (rows, K) how often each y occurs with each token; with one row, how often it occurs at all."""
    K = task.target.size
    counts = torch.zeros(rows * K)
    for batch in iterate_split(task, "train"):
        y = batch.y
        assert y is not None
        translate = FORMS[task.kind].is_translated
        x = shift_target(y) if translate else batch.x
        real = y != PAD if translate else y >= 0
        first = x[real] if rows > 1 else torch.zeros_like(y[real])
        counts += torch.bincount(first * K + y[real], minlength=rows * K)
    return counts.view(rows, K)


def _unigram(counts: Tensor) -> Tensor:
    p = counts.sum(0) + UNSEEN_COUNT
    return p / p.sum()


def _back_off(counts: Tensor) -> Tensor:
    """Return (1 - b) c(x, y) / c(x) + b p(y), or p(y) for an unseen x."""
    unigram, seen = _unigram(counts), counts.sum(1, keepdim=True)
    return torch.where(seen > 0, (1 - BACKOFF) * counts / seen.clamp(min=1) + BACKOFF * unigram, unigram)
