"""MiniROCKET: the share of positive outputs of fixed convolutions, in a ridge regression.

A kernel has nine weights, three of them 2 and six -1: 84 in all. With dilation d it maps a series x to

    C_t = sum_j w_j x[t + (j - 4) d]        x is 0 outside of the series

and each bias b gives one feature, the share of the steps with C_t > b. Half of the pairs of kernel and dilation use all
steps, the others only those at which the kernel lies inside the series. Dilations grow exponentially up to the length;
biases are quantiles of C for random training series. With several features, each pair adds up some of them.

Dempster, Schmidt & Webb 2021, MiniRocket: a very fast (almost) deterministic transform for time series classification.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Task
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.stats.metrics import Array

KERNEL_LENGTH, CENTRE = 9, 4
KERNELS = tuple(combinations(range(KERNEL_LENGTH), 3))  # the positions of the weights 2
FEATURES, FEWEST_FEATURES = 10_000, 1_000  # the first is the paper's
MOST_DILATIONS = 32  # maximum per kernel, as in the paper
MOST_CHANNELS = 9  # features that a kernel adds up, as in the paper
MOST_WORK = 1.5e10  # comparisons in a whole split, about 20 s on one core; longer series get fewer features
MOST_ROWS, MOST_EIGENVALUES = 10_000, 2_000  # rows that are fitted; size of the larger eigenvalue problem
SMALL = 1 << 12  # values that are compared with several biases at once
CHUNK = 1 << 16  # values of a series that are transformed together: they fit into a core's cache
ALPHAS = tuple(10.0 ** (2 / 3 * k - 3) for k in range(10))  # strengths of the ridge for each row, as in the paper
SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # factors of the ridge's outputs that become log-probabilities
UNSEEN_SCORE = -30.0  # score of a class that does not occur in training


class RocketKernels(NamedTuple):
    """The convolutions; `Rocket` has the shapes."""

    dilations: Array
    counts: Array
    channels: Array
    biases: Array


class Rocket(BaselineModule):
    """W f(x) + b for MiniROCKET features f.

    Args:
        dilations: (n,).
        counts: (n,) biases of each kernel with that dilation.
        channels: (n, 84, D) which features of the series are added up for a pair of dilation and kernel.
        biases: (F,), ordered by dilation, then kernel.
        W: (K, F).
        b: (K,).
    """

    dilations: Tensor
    counts: Tensor
    channels: Tensor
    biases: Tensor
    W: Tensor
    b: Tensor
    fitted = ("W", "b")

    def __init__(
        self, dilations: Tensor, counts: Tensor, channels: Tensor, biases: Tensor, W: Tensor, b: Tensor
    ) -> None:
        super().__init__(dilations=dilations, counts=counts, channels=channels, biases=biases, W=W, b=b)
        check_features(dilations, counts, channels, biases, W, b)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kernels = RocketKernels(*(getattr(self, name).cpu().numpy() for name in RocketKernels._fields))
        f = transform(x.cpu().numpy(), lengths.cpu().numpy(), kernels)
        return torch.from_numpy(f).to(x.device) @ self.W.T + self.b


def check_features(dilations: Tensor, counts: Tensor, channels: Tensor, biases: Tensor, W: Tensor, b: Tensor) -> None:
    """Raise a UserError if arrays, which may come from a file, do not fit each other."""
    n, F, K, D = dilations.numel(), biases.numel(), b.numel(), channels.shape[-1] if channels.dim() else 0
    sizes = (n,), (n,), (n, len(KERNELS), D), (F,), (K, F), (K,)
    given = dilations, counts, channels, biases, W, b
    numbers = all(not t.is_floating_point() and t.dtype != torch.bool for t in (dilations, counts))
    numbers = numbers and biases.dtype == W.dtype == b.dtype == torch.float32
    if not numbers or channels.dtype != torch.bool or [t.shape for t in given] != [torch.Size(size) for size in sizes]:
        forms = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in given)
        raise UserError(f"the features do not fit each other: dilations to b are {forms}")
    if bool((dilations < 1).any()) or bool((counts < 0).any()) or int(counts.sum()) * len(KERNELS) != F:
        raise UserError(f"the features do not fit each other: there are {F} biases and other counts or dilations")


def fit_rocket(task: Task, splits: Sequence[str] = ("train",)) -> ForTask:
    """Fit a ridge regression to the features of the series in `splits`, for classes with targets of -1 and 1."""
    x, lengths, y = read_series(task, splits)
    if task.target.as_target == "class":
        classes = np.unique(y)
        target = np.where(y[:, None] == classes, 1.0, -1.0)
    else:
        target = y.astype(np.float64)
    kernels = fit_kernels(x, lengths, _count_features(task, *x.shape[:2]))
    f = transform(x, lengths, kernels).astype(np.float64)
    mean, std = f.mean(0), f.std(0)
    std[std < 1e-8] = 1.0
    W, b, left_out = fit_ridge((f - mean) / std, target, ALPHAS)
    W, b = W / std, b - W @ (mean / std)
    if task.target.as_target == "class":
        scale = choose_scale(left_out, np.searchsorted(classes, y))
        some_W, some_b = scale * W, scale * b
        W, b = np.zeros((task.target.size, W.shape[1])), np.full(task.target.size, UNSEEN_SCORE)
        W[classes], b[classes] = some_W, some_b
    arrays = (*kernels, W.astype(np.float32), b.astype(np.float32))
    return wrap(task, Rocket(*map(torch.from_numpy, arrays)))


def read_series(task: Task, splits: Sequence[str]) -> tuple[Array, Array, Array]:
    """Return up to MOST_ROWS series (N, T, D) with a known target, their lengths and targets."""
    parts, rows = [], 0
    for batch in chain.from_iterable(iterate_split(task, split) for split in splits):
        known = get_targets(batch) >= 0 if task.target.as_target == "class" else ~get_targets(batch).isnan().any(1)
        parts.append((batch.x[known].numpy(), batch.lengths[known].numpy(), get_targets(batch)[known].numpy()))
        rows += len(parts[-1][1])
        if rows >= MOST_ROWS:
            break
    T = max(x.shape[1] for x, _, _ in parts)
    x = np.concatenate([np.pad(x, ((0, 0), (0, T - x.shape[1]), (0, 0))) for x, _, _ in parts])
    return x, np.concatenate([n for _, n, _ in parts]), np.concatenate([y for _, _, y in parts])


def _count_features(task: Task, rows: int, steps: int) -> int:
    every = sum(task.splits[name].size or rows for name in ("train", "valid", "test"))
    affordable = MOST_WORK / (max(rows, every) * steps)
    most = FEATURES if rows <= MOST_EIGENVALUES else MOST_EIGENVALUES
    return int(np.clip(affordable, FEWEST_FEATURES, most))


def fit_kernels(x: Array, lengths: Array, features: int = FEATURES, seed: int = 0) -> RocketKernels:
    """Choose dilations, channels and biases from training series.

    Args:
        x: (N, T, D) series, 0 past their ends.
        lengths: (N,) their lengths.
        features: number of features; fewer by less than 84.
        seed: seed of the random series and channels.
    """
    random = np.random.default_rng(seed)
    longest = max(KERNEL_LENGTH, int(lengths.max()))
    each = max(1, features // len(KERNELS))
    exponents = np.linspace(0, np.log2((longest - 1) / (KERNEL_LENGTH - 1)), min(each, MOST_DILATIONS))
    dilations, times = np.unique(np.floor(2**exponents).astype(np.int64), return_counts=True)
    counts = each * times // times.sum()
    counts[: each - counts.sum()] += 1  # the remainder goes to the short dilations
    channels = np.stack([_draw_channels(random, x.shape[2]) for _ in range(len(dilations) * len(KERNELS))])
    channels = channels.reshape(len(dilations), len(KERNELS), -1)
    golden = (1 + np.sqrt(5)) / 2
    quantiles = np.arange(1, each * len(KERNELS) + 1) * golden % 1  # a low-discrepancy sequence
    biases, start = np.empty(len(quantiles), np.float32), 0
    for dilation, count, some in zip(dilations, counts, channels, strict=True):
        for k, kernel in enumerate(KERNELS):
            row = int(random.integers(len(x)))
            series = x[row : row + 1, : max(1, lengths[row])]
            C = next(_convolve(_add_channels(series, some[k]), dilation, [kernel]))
            biases[start : start + count] = np.quantile(C, quantiles[start : start + count])
            start += count
    return RocketKernels(dilations, counts, channels, biases)


def _draw_channels(random: np.random.Generator, features: int) -> Array:
    """Return a mask (D,) of 1 to MOST_CHANNELS features; small numbers of features are likelier."""
    number = int(2 ** random.uniform(0, np.log2(min(features, MOST_CHANNELS) + 1)))
    mask = np.zeros(features, dtype=bool)
    mask[random.choice(features, number, replace=False)] = True
    return mask


def transform(x: Array, lengths: Array, kernels: RocketKernels) -> Array:
    """Return the features (N, F) of series (N, T, D) that are 0 past their ends."""
    rows = max(1, CHUNK // x.shape[1])
    chunks = [slice(start, start + rows) for start in range(0, len(x), rows)]
    return np.concatenate([_transform(x[s], lengths[s], *kernels) for s in chunks])


def _transform(x: Array, lengths: Array, dilations: Array, counts: Array, channels: Array, biases: Array) -> Array:
    f, start = np.empty((len(x), len(biases)), np.float32), 0
    steps, ends = np.arange(x.shape[1]), np.maximum(lengths, 1)[:, None]
    same_length = bool((ends == len(steps)).all())
    for i, (dilation, count) in enumerate(zip(dilations, counts, strict=True)):
        margin = CENTRE * dilation
        inside = (steps >= margin) & (steps < ends - margin)  # (N, T): the kernel lies inside the series
        inside = np.where(inside.any(1, keepdims=True), inside, steps < ends)
        real = [steps < ends, inside]
        totals = [mask.sum(1) for mask in real]
        single = channels.shape[2] == 1
        outputs = _convolve(x[..., 0], dilation, KERNELS) if single else None
        for k, kernel in enumerate(KERNELS):
            C = next(outputs) if outputs else next(_convolve(_add_channels(x, channels[i, k]), dilation, [kernel]))
            part = (i + k) % 2
            if not (same_length and part == 0):
                C = np.where(real[part], C, -np.inf)
            f[:, start : start + count] = _count_above(C, biases[start : start + count]) / totals[part][:, None]
            start += count
    return f


def _count_above(C: Array, biases: Array) -> Array:
    """Count the steps of C (N, T) above each bias, (N, biases)."""
    if C.size < SMALL:  # one comparison; larger ones would leave the cache
        return (C[:, None] > biases[:, None]).view(np.uint8).sum(2, dtype=np.uint32)
    return np.stack([(bias < C).view(np.uint8).sum(1, dtype=np.uint32) for bias in biases], 1)


def _add_channels(x: Array, channels: Array) -> Array:
    return x[..., channels].sum(-1)


def _convolve(x: Array, dilation: int, kernels: Iterable[tuple[int, ...]]) -> Iterator[Array]:
    """Yield the output (N, T) of each kernel: -1 times all nine steps, and 3 times the three whose weight is 2."""
    T, margin = x.shape[1], CENTRE * dilation
    padded = np.pad(x, ((0, 0), (margin, margin)))
    shifted = [padded[:, j * dilation : j * dilation + T] for j in range(KERNEL_LENGTH)]
    every = sum(shifted[1:], shifted[0])
    for a, b, c in kernels:
        yield 3 * (shifted[a] + shifted[b] + shifted[c]) - every


def fit_ridge(x: Array, y: Array, alphas: Sequence[float]) -> tuple[Array, Array, Array]:
    """Fit y = W x + b with the strength that has the least squared error on rows left out one at a time.

    With the singular values s of x and left vectors U, the fit is H y with H = U s^2 / (s^2 + alpha) U'. The error of a
    row that is left out is (y - H y) / (1 - H_ii).

    Args:
        x: (N, F) features of mean 0.
        y: (N, K) targets.
        alphas: strengths for each row to choose from.

    Returns:
        W (K, F), b (K,) and the predictions (N, K) for rows that are left out.
    """
    mean = y.mean(0)
    off = y - mean
    n, wide = len(x), len(x) <= x.shape[1]
    squares, vectors = np.linalg.eigh(x @ x.T if wide else x.T @ x)
    some = squares > squares[-1] * 1e-12
    squares, vectors = squares[some], vectors[:, some]
    U = vectors if wide else x @ vectors / np.sqrt(squares)
    projected, leverage = U.T @ off, U**2
    errors = []
    for alpha in n * np.array(alphas):
        shrink = squares / (squares + alpha)
        errors.append((off - U @ (shrink[:, None] * projected)) / (1 - leverage @ shrink - 1 / n).clip(1e-9)[:, None])
    best = int(np.argmin([np.square(error).mean() for error in errors]))
    W = (x.T @ (U @ (projected / (squares + n * alphas[best])[:, None]))).T
    return W, mean, y - errors[best]


def choose_scale(scores: Array, y: Array) -> float:
    """Return the factor with which scores (N, K) are the best log-probabilities of the classes y."""

    def nats(scale: float) -> float:
        log_p = torch.from_numpy(scale * scores).log_softmax(1)
        return -float(log_p[torch.arange(len(y)), torch.from_numpy(y)].mean())

    return min(SCALES, key=nats)
