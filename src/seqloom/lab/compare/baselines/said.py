"""Answers that do not depend on the input."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.lab.compare.data import some
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.training.for_task import ForClassify, ForRegress, ForTask, ForTranscribe, Prediction


class Plain(nn.Module):
    """Has no weights to train; `size` numbers were fitted. The empty parameter says where it is."""

    crf = None

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.size = size
        self.nowhere = nn.Parameter(torch.zeros(0), requires_grad=False)


class Same(Plain):
    """The same scores for every row."""

    scores: Tensor

    def __init__(self, scores: Tensor) -> None:
        super().__init__(scores.numel())
        self.register_buffer("scores", scores)

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        return self.scores.expand(len(x), *self.scores.shape)


def majority(task: Task) -> ForTask:
    counts = torch.zeros(task.target.size)
    for batch in some(task, "train"):
        assert batch.y is not None
        counts += torch.bincount(batch.y[batch.y >= 0], minlength=task.target.size)
    return ForClassify(Same(((counts + 1) / (counts + 1).sum()).log()))


def mean(task: Task) -> ForTask:
    total, n = torch.zeros(task.target.size), torch.zeros(task.target.size)
    for batch in some(task, "train"):
        assert batch.y is not None
        total, n = total + batch.y.nan_to_num().sum(0), n + (~batch.y.isnan()).sum(0)
    return ForRegress(Same(total / n.clamp(min=1)))


class SameText(ForTranscribe):
    """One text for every recording; it has no loss."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(Plain(len(ids)))
        self.ids = torch.tensor(ids, dtype=torch.long)

    def scores(self, batch: Batch, state: Any = None) -> tuple[Any, None]:
        return None, None

    def row_losses(self, scores: Any, batch: Batch) -> Tensor:
        return torch.full((len(batch),), torch.nan)

    def choose(self, scores: Any, batch: Batch) -> Prediction:
        return Prediction(self.ids.expand(len(batch), -1), torch.full((len(batch),), len(self.ids)))


def commonest_text(task: Task) -> ForTask:
    texts: Counter[tuple[int, ...]] = Counter()
    for batch in some(task, "train"):
        assert batch.y is not None and batch.y_lengths is not None
        for row, n in zip(batch.y.tolist(), batch.y_lengths.tolist(), strict=True):
            texts[tuple(row[:n])] += 1
    return SameText(list(texts.most_common(1)[0][0]))
