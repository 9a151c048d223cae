"""Tables of counts: the commonest tag of a token, the commonest token, and the one after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.lab.compare.baselines.said import Plain
from seqloom.lab.compare.data import some
from seqloom.lab.data.task import PAD, START, Task, Tokens
from seqloom.lab.training.for_task import ForGenerate, ForTag, ForTask, ForTranslate, Prediction

FEW = 1e-2  # so much of a count has everything that was never seen
BACK = 0.1  # share of a pair's probability that its second part has without the first
WIDE = 3_000  # a table of pairs over more different tokens is not built


class Table(Plain):
    """log p(y | token), a row for each token: (V, K)."""

    log_p: Tensor

    def __init__(self, p: Tensor) -> None:
        super().__init__(p.numel())
        self.register_buffer("log_p", p.log())

    def forward(self, x: Tensor, lengths: Any = None, state: Any = None) -> Any:
        said = self.log_p[x]
        return said if state is None else (said, state)


class Single(Plain):
    """log p(y), whatever came before: (K,)."""

    log_p: Tensor

    def __init__(self, p: Tensor) -> None:
        super().__init__(p.numel())
        self.register_buffer("log_p", p.log())

    def forward(self, x: Tensor, lengths: Any = None) -> Tensor:
        return self.log_p.expand(*x.shape[:2], -1)


class Language(ForGenerate):
    def scores(self, batch: Any, state: Any = None) -> tuple[Tensor, None]:
        return self.model(batch.x), None


class Writing(ForTranslate):
    """Says the target without a look at the source."""

    def scores(self, batch: Any, state: Any = None) -> tuple[Tensor, None]:
        read = torch.cat([torch.full_like(batch.y[:, :1], START), batch.y[:, :-1]], 1)
        return self.model(read), None

    def predict(self, batch: Any) -> Prediction:
        return self.choose(self.scores(batch)[0], batch)


def commonest_tag(task: Task) -> ForTask:
    return ForTag(Single(_single(_pairs(task, 1))))


def tag_of_token(task: Task) -> ForTask:
    assert isinstance(task.input, Tokens)
    return ForTag(Table(_backed_off(_pairs(task, task.input.size))))


def unigram(task: Task) -> ForTask:
    made = Single(_single(_pairs(task, 1)))
    return Writing(made) if task.kind == "translate" else Language(made)


def bigram(task: Task) -> ForTask:
    made = Table(_backed_off(_pairs(task, task.target.size)))
    return Writing(made) if task.kind == "translate" else Language(made)


def narrow(task: Task) -> bool:
    return task.target.size <= WIDE


def _pairs(task: Task, rows: int) -> Tensor:
    """(rows, K) how often each y came with each token; with one row, at all."""
    K = task.target.size
    counts = torch.zeros(rows * K)
    for batch in some(task, "train"):
        y = batch.y
        assert y is not None
        x = batch.x
        if task.kind == "translate":
            x = torch.cat([torch.full_like(y[:, :1], START), y[:, :-1]], 1)
        real = y != PAD if task.kind == "translate" else y >= 0
        first = x[real] if rows > 1 else torch.zeros_like(y[real])
        counts += torch.bincount(first * K + y[real], minlength=rows * K)
    return counts.view(rows, K)


def _single(counts: Tensor) -> Tensor:
    p = counts.sum(0) + FEW
    return p / p.sum()


def _backed_off(counts: Tensor) -> Tensor:
    """(1 - b) c(x, y) / c(x) + b p(y), and p(y) alone for an x that was never seen."""
    single, seen = _single(counts), counts.sum(1, keepdim=True)
    return torch.where(seen > 0, (1 - BACK) * counts / seen.clamp(min=1) + BACK * single, single)
