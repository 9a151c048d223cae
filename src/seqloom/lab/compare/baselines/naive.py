"""Baseline forecasts: the last value, the mean, the value one season ago, and a ridge regression."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seqloom.core.masks import make_mask
from seqloom.lab.compare.baselines.module import BaselineModule, wrap
from seqloom.lab.compare.data import iterate_split
from seqloom.lab.data.task import Task, Values
from seqloom.lab.training.for_task import ForTask, order_features

PERIODS = (4, 7, 12, 24, 48, 52, 96, 144, 168, 288, 336)  # quarters, weeks, months, hours, quarter hours
RIDGE_ALPHAS = (1e-3, 1e-1, 10.0, 1e3)  # relative to the mean square of the inputs
MOST_ROWS = 20_000  # series that the ridge is fitted to


class Naive(BaselineModule):
    """Forecast the mean or the last season: the past (B, T, D) -> the future (B, S, K) of the first K features."""

    fields = ("how", "horizon", "targets", "period")

    def __init__(self, how: str, horizon: int, targets: int, period: int = 1) -> None:
        super().__init__(int(how == "season"))
        self.how, self.horizon, self.targets, self.period = how, horizon, targets, period

    def forward(self, x: Tensor, lengths: Tensor, future: Tensor | None = None) -> Tensor:
        B, S, K = len(x), self.horizon, self.targets
        x = x[..., :K]
        if self.how == "mean":
            real = make_mask(lengths, x.shape[1]).unsqueeze(-1)
            return ((x * real).sum(1) / real.sum(1)).unsqueeze(1).expand(B, S, K)
        at = lengths.unsqueeze(1) - self.period + torch.arange(S, device=x.device) % self.period  # (B, S)
        return x.gather(1, at.clamp(min=0).unsqueeze(-1).expand(B, S, K))


class Ridge(BaselineModule):
    """y - l = W (x - l) with the last value l; one W (S, T) for all series."""

    W: Tensor
    fields = ("targets",)

    def __init__(self, W: Tensor, targets: int) -> None:
        super().__init__(W.numel())
        self.register_buffer("W", W)
        self.targets = targets

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        x = x[..., : self.targets]
        last = x[:, -1:]
        return torch.einsum("st,btk->bsk", self.W, x - last) + last


def fit_last_value(task: Task) -> ForTask:
    return wrap(task, Naive("season", *_sizes(task)))


def fit_mean_of_past(task: Task) -> ForTask:
    return wrap(task, Naive("mean", *_sizes(task)))


def fit_seasonal(task: Task) -> ForTask:
    """Choose the period that does best on the validation windows."""
    lookback = next(iter(iterate_split(task, "valid"))).x.shape[1]
    models = [wrap(task, Naive("season", *_sizes(task), period)) for period in PERIODS if period <= lookback]
    return min(models or [fit_last_value(task)], key=lambda model: _error(model, task))


def fit_ridge(task: Task) -> ForTask:
    """Fit one linear map from past to future; its strength is chosen on the validation windows."""
    xs, ys = [], []
    rows = 0
    order = order_features(task)
    K = task.target.size
    for batch in iterate_split(task, "train"):
        assert batch.y is not None
        x, y = batch.x[..., order][..., :K], batch.y
        last = x[:, -1:]
        xs.append((x - last).transpose(1, 2).flatten(0, 1).double())
        ys.append((y - last).transpose(1, 2).flatten(0, 1).double())
        rows += len(xs[-1])
        if rows > MOST_ROWS:
            break
    x, y = torch.cat(xs), torch.cat(ys)
    known = ~(x.isnan().any(1) | y.isnan().any(1))
    x, y = x[known], y[known]
    gram, both = x.T @ x, x.T @ y
    every = torch.eye(len(gram), dtype=torch.float64) * (gram.diagonal().mean() + 1e-12)
    models = [wrap(task, Ridge(torch.linalg.solve(gram + a * every, both).T.float(), K)) for a in RIDGE_ALPHAS]
    return min(models, key=lambda model: _error(model, task))


def _sizes(task: Task) -> tuple[int, int]:
    assert isinstance(task.target, Values)
    return task.target.steps, task.target.size


@torch.no_grad()
def _error(model: ForTask, task: Task) -> float:
    total = count = 0.0
    for batch in iterate_split(task, "valid"):
        total += float(model(batch)[0])
        count += float(model.count_targets(batch).sum())
    return total / max(1.0, count) if np.isfinite(total) else float("inf")
