"""Baseline forecasts: the last value, the mean, the value one season ago, and a ridge regression."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from seqloom.core.masks import make_mask
from seqloom.lab.data.task import Task, Values
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.kinds.forecast import order_features

PERIODS = (4, 7, 12, 24, 48, 52, 96, 144, 168, 288, 336)  # quarters, weeks, months, hours, quarter hours
RIDGE_ALPHAS = (1e-3, 1e-1, 10.0, 1e3)  # relative to the mean square of the inputs
MOST_ROWS = 20_000  # series that the ridge is fitted to


class Naive(BaselineModule):
    """Forecast the mean or the last season: the past (B, T, D) -> the future (B, S, K) of the first K features."""

    how: str
    horizon: int
    targets: int
    period: int
    fields = ("how", "horizon", "targets", "period")

    def __init__(self, how: str, horizon: int, targets: int, period: int = 1) -> None:
        super().__init__(how=how, horizon=horizon, targets=targets, period=period)
        self.size = int(how == "season")

    def forward(self, x: Tensor, lengths: Tensor, future: Tensor | None = None) -> Tensor:
        B, S, K = x.shape[0], self.horizon, self.targets
        x = x[..., :K]
        if self.how == "mean":
            real = make_mask(lengths, x.shape[1]).unsqueeze(-1)
            return ((x * real).sum(1) / real.sum(1)).unsqueeze(1).expand(B, S, K)
        at = lengths.unsqueeze(1) - self.period + torch.arange(S, device=x.device) % self.period  # (B, S)
        return x.gather(1, at.clamp(min=0).unsqueeze(-1).expand(B, S, K))


class Ridge(BaselineModule):
    """y_s - l = w_s (x - l) + v_s [f_s; 1] with the last value l and the known features f_s, if there are any.

    Args:
        W: (S, T), one for all series.
        targets: The number of targets, which come first.
        V: (S, F + 1); None without known features and gaps.

    A past of fewer than T steps is preceded by its first value.
    """

    W: Tensor
    V: Tensor | None
    targets: int
    fields = ("targets",)
    fitted = ("W", "V")

    def __init__(self, W: Tensor, targets: int, V: Tensor | None = None) -> None:
        super().__init__(W=W, targets=targets, V=V)

    def forward(self, x: Tensor, lengths: Tensor | None = None, future: Tensor | None = None) -> Tensor:
        x, T = x[..., : self.targets], self.W.shape[1]
        if lengths is not None:
            at = lengths.unsqueeze(1) - T + torch.arange(T, device=x.device)  # (B, T)
            x = x.gather(1, at.clamp(min=0).unsqueeze(-1).expand(-1, -1, self.targets))
        last = x[:, -1:]
        y = torch.einsum("st,btk->bsk", self.W, x - last) + last
        if self.V is None:
            return y
        if future is None:  # no known features: V is the constant of each step
            return y + self.V
        effect = torch.einsum("sf,bsf->bs", self.V[:, :-1], future) + self.V[:, -1]
        return y + effect.unsqueeze(-1)


def fit_last_value(task: Task) -> ForTask:
    return wrap(task, Naive("season", *_sizes(task)))


def fit_mean_of_past(task: Task) -> ForTask:
    return wrap(task, Naive("mean", *_sizes(task)))


def fit_seasonal(task: Task) -> ForTask:
    """Choose the period with the lowest error on the validation windows."""
    lookback = next(iter(iterate_split(task, "valid"))).x.shape[1]
    periods = sorted({*PERIODS, *getattr(getattr(task.encoding, "times", None), "seasons", ())})
    models = [wrap(task, Naive("season", *_sizes(task), period)) for period in periods if period <= lookback]
    return min(models or [fit_last_value(task)], key=lambda model: _error(model, task))


def fit_ridge(task: Task) -> ForTask:
    """Fit one linear map from past to future; its strength is chosen on the validation windows."""
    xs, ys, fs = [], [], []
    rows, order, K = 0, order_features(task), task.target.size
    for batch in iterate_split(task, "train"):
        x, y = batch.x[..., order][..., :K], get_targets(batch)
        last = x[:, -1:]
        xs.append((x - last).transpose(1, 2).flatten(0, 1).double())
        ys.append((y - last).transpose(1, 2).flatten(0, 1).double())
        if batch.future is not None:
            fs.append(batch.future.repeat_interleave(K, 0).double())
        rows += len(xs[-1])
        if rows > MOST_ROWS:
            break
    x, y = torch.cat(xs), torch.cat(ys)
    models = [wrap(task, Ridge(*maps)) for maps in _solve_ridges(x, y, torch.cat(fs) if fs else None, K)]
    return min(models, key=lambda model: _error(model, task))


def _solve_ridges(x: Tensor, y: Tensor, f: Tensor | None, K: int) -> Iterator[tuple[Tensor, int, Tensor | None]]:
    """Yield W, the number of targets and V for each strength.

    Args:
        x: (N, T).
        y: (N, S); NaN if unknown.
        f: (N, S, F) known features; None without them.
        K: The number of targets.
    """
    T, S = x.shape[1], y.shape[1]
    unknown = y.isnan()
    gram, scale = x.T @ x, x.square().sum(0).mean() + 1e-12
    if f is None and not unknown.any():
        both = x.T @ y
        every = torch.eye(T, dtype=torch.float64) * scale
        yield from ((torch.linalg.solve(gram + a * every, both).T.float(), K, None) for a in RIDGE_ALPHAS)
        return
    systems = []
    for s in range(S):
        gone, real = x[unknown[:, s]], (~unknown[:, s]).double().unsqueeze(1)
        more = real if f is None else torch.cat([f[:, s], torch.ones_like(real)], 1) * real
        corner = x.T @ more
        top = torch.cat([gram - gone.T @ gone, corner], 1)
        whole = torch.cat([top, torch.cat([corner.T, more.T @ more], 1)], 0)
        right = torch.cat([x, more], 1).T @ y[:, s].nan_to_num().unsqueeze(1)
        systems.append((whole, right))
    penalty = torch.full((len(systems[0][0]),), float(scale), dtype=torch.float64)
    penalty[-1] = 1e-6  # penalty of the constant
    for a in RIDGE_ALPHAS:
        w = torch.cat([torch.linalg.solve(whole + torch.diag(a * penalty), right) for whole, right in systems], 1).T
        yield w[:, :T].float().contiguous(), K, w[:, T:].float().contiguous()


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
