"""A linear tagger: logistic regression over the words around each step, their shapes, prefixes and suffixes.

Every feature is a pair of a template and a value, such as (suffix of length 3, "ing"), hashed to one of 2^22 buckets.
Buckets that occur once in training are left out. Tokens without letters (Chinese characters, ids) have only templates
of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.lab.data.coders.letters import FIRST_LETTER
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.stats.metrics import Array

WINDOW = 2  # steps before and after the one that is tagged
AFFIXES = (1, 2, 3, 4)  # lengths of prefixes and suffixes
FEWEST, MOST_FEATURES = 2, 400_000  # occurrences of a feature in training; number of features
MOST_STEPS = 600_000  # tokens that are fitted
EPOCHS, BATCH, RATE = 4, 256, 0.3  # of Adagrad; the best epoch on the validation rows counts
BUCKET_BITS = 22
MIXER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio, an odd number that spreads bits
UPPER, LOWER, DIGIT, OTHER = 1, 2, 3, 4  # kinds of letters; 0 past the end of a word


class WindowTagger(BaselineModule):
    """Scores (B, T, K): the sum of b and the rows of W of each known feature of a step.

    Args:
        known: (V,) buckets of the features.
        W: (V + 1, K); the last row is 0, for unknown features.
        b: (K,).
        lower: (A,) the lower case of each letter id; empty if tokens have no letters.
        kinds: (A,) whether a letter is upper case, lower case, a digit or something else.
    """

    known: Tensor
    W: Tensor
    b: Tensor
    lower: Tensor
    kinds: Tensor

    def __init__(self, known: Tensor, W: Tensor, b: Tensor, lower: Tensor, kinds: Tensor) -> None:
        super().__init__(W.numel() + b.numel())
        self.reads_letters = len(lower) > 0
        for name, tensor in (("known", known), ("W", W), ("b", b), ("lower", lower), ("kinds", kinds)):
            self.register_buffer(name, tensor)
        self.columns = _number_buckets(known.cpu().numpy())

    def forward(self, x: Tensor, lengths: Tensor, letters: Tensor | None = None) -> Tensor:
        alphabet = (self.lower.cpu().numpy(), self.kinds.cpu().numpy())
        buckets = list_features(x.cpu().numpy(), lengths.cpu().numpy(), _to_numpy(letters), *alphabet)
        columns = self.columns[buckets]
        scores = torch.zeros(*x.shape, len(self.b), device=x.device)
        steps = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
        scores[steps] = F.embedding_bag(torch.from_numpy(columns).to(x.device), self.W, mode="sum") + self.b
        return scores


def fit_window(task: Task) -> ForTask:
    """Fit by Adagrad (Duchi et al. 2011) on the cross-entropy; the validation rows choose the epoch."""
    lower, kinds = _describe_alphabet(task)
    features, ys = [], []
    for batch in _take(task, MOST_STEPS):
        assert batch.y is not None
        part = list_features(batch.x.numpy(), batch.lengths.numpy(), _to_numpy(batch.letters), lower, kinds)
        y = batch.y[torch.arange(batch.x.shape[1]) < batch.lengths.unsqueeze(1)].numpy()
        features.append(part[y >= 0])
        ys.append(y[y >= 0])
    f, tags = np.concatenate(features), torch.from_numpy(np.concatenate(ys))
    counts = np.bincount(f.ravel(), minlength=1 << BUCKET_BITS)
    frequent = np.argsort(-counts, kind="stable")[:MOST_FEATURES]
    known = np.sort(frequent[counts[frequent] >= FEWEST])
    columns, K = torch.from_numpy(_number_buckets(known)[f]), task.target.size
    W, b = torch.zeros(len(known) + 1, K), torch.zeros(K)
    squares = torch.ones(len(W))
    tensors = [torch.from_numpy(known), W, b, torch.from_numpy(lower), torch.from_numpy(kinds)]
    best, least = [tensor.clone() for tensor in tensors], np.inf
    generator = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(tags), generator=generator).split(BATCH):
            _step(W, b, squares, columns[rows], tags[rows])
        loss = _validate(wrap(task, WindowTagger(*tensors)), task)
        if loss >= least:
            break
        best, least = [tensor.clone() for tensor in tensors], loss
    return wrap(task, WindowTagger(*best))


def _take(task: Task, steps: int) -> Iterator[Batch]:
    """Yield training batches up to a number of steps."""
    count = 0
    for batch in iterate_split(task, "train"):
        yield batch
        count += batch.steps
        if count >= steps:
            return


def _step(W: Tensor, b: Tensor, squares: Tensor, columns: Tensor, y: Tensor) -> None:
    """Make one step of Adagrad, with one rate for each feature, on features `columns` (n, F) and tags y (n,)."""
    error = (F.embedding_bag(columns, W, mode="sum") + b).softmax(1)  # (n, K)
    error[torch.arange(len(y)), y] -= 1
    flat, each = columns.flatten(), columns.shape[1]
    squares.index_add_(0, flat, error.square().sum(1).repeat_interleave(each))
    rates = RATE / squares[flat].sqrt()
    W.index_add_(0, flat, -rates.unsqueeze(1) * error.repeat_interleave(each, 0))
    W[-1] = 0  # the row of unknown features
    b -= RATE * error.mean(0)


@torch.no_grad()
def _validate(model: ForTask, task: Task) -> float:
    model.eval()  # which ignores tags that do not occur in training
    return sum(float(model(batch)[0]) for batch in iterate_split(task, "valid"))


def _describe_alphabet(task: Task) -> tuple[Array, Array]:
    """Return the lower case and the kind of each letter id; empty arrays if the task has no letters."""
    coder = None if task.encoding is None else task.encoding.letters
    if coder is None:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    ids = {letter: i for i, letter in enumerate(coder.letters, FIRST_LETTER)}
    lower = [*range(FIRST_LETTER), *(ids.get(letter.lower(), i) for letter, i in ids.items())]
    kinds = [0, OTHER, *(_kind(letter) for letter in ids)]
    return np.array(lower), np.array(kinds)


def _kind(letter: str) -> int:
    return UPPER if letter.isupper() else DIGIT if letter.isdigit() else LOWER if letter.isalpha() else OTHER


def _to_numpy(letters: Tensor | None) -> Array | None:
    return None if letters is None else letters.cpu().numpy()


def list_features(x: Array, lengths: Array, letters: Array | None, lower: Array, kinds: Array) -> Array:
    """Return the buckets (sum of lengths, F) of the features of all steps.

    Args:
        x: (B, T) token ids.
        lengths: (B,).
        letters: (B, T, C) letter ids, or None.
        lower: (A,) the lower case of each letter id; empty to ignore letters.
        kinds: (A,) the kind of each letter id.
    """
    real = np.arange(x.shape[1]) < lengths[:, None]
    if letters is None or not len(lower):
        words, at_step, near = _mix(x.astype(np.uint64), 1), [], []
    else:
        spelling = _spell(letters, lower, kinds)
        words = spelling.words
        at_step, near = [*spelling.prefixes, *spelling.suffixes], [spelling.shapes, spelling.suffixes[-2]]
    around = {k: _shift(words, real, k) for k in range(-WINDOW, WINDOW + 1)}
    columns = [*around.values(), *at_step]
    columns += [_mix(around[k], around[k + 1]) for k in range(-WINDOW, WINDOW)]
    columns += [_mix(around[-1], around[1]), _mix(_mix(around[-1], around[0]), around[1])]
    columns += [_shift(value, real, k) for value in near for k in (-1, 0, 1)]
    hashes = np.stack([_mix(column[real], template) for template, column in enumerate(columns)], 1)
    return (hashes >> np.uint64(64 - BUCKET_BITS)).astype(np.int32)


def _shift(values: Array, real: Array, k: int) -> Array:
    """Return at each step the value k steps later, or 0 outside the row."""
    padded = np.pad(np.where(real, values, 0), ((0, 0), (WINDOW, WINDOW)))
    return padded[:, WINDOW + k : WINDOW + k + values.shape[1]]


def _mix(a: Array, b: Array | int) -> Array:
    """Return a 64-bit hash of pairs."""
    h = (a ^ (a >> np.uint64(29))) * MIXER + np.asarray(b, np.uint64) + np.uint64(1)
    return (h ^ (h >> np.uint64(32))) * MIXER


@dataclass(frozen=True, eq=False)
class Spelling:
    """Hashes (B, T) of lower-case words, of their shapes, and of their prefixes and suffixes of each length.

    A shape is the kinds of the letters without repetitions: Xx for Paris, X.X. for U.S., x for dog.
    """

    words: Array
    shapes: Array
    prefixes: list[Array]
    suffixes: list[Array]


def _spell(letters: Array, lower: Array, kinds: Array) -> Spelling:
    small, kind = lower[letters].astype(np.uint64), kinds[letters].astype(np.uint64)
    ends = (letters != 0).sum(2)
    words = np.zeros(ends.shape, np.uint64)
    shapes, prefixes, before = words, [], np.zeros_like(words)
    for i in range(letters.shape[2]):
        words = np.where(i < ends, _mix(words, small[..., i]), words)
        shapes = np.where((i < ends) & (kind[..., i] != before), _mix(shapes, kind[..., i]), shapes)
        before = kind[..., i]
        if i + 1 in AFFIXES:
            prefixes.append(words)
    backwards, suffixes = np.zeros_like(words), []
    for i in range(max(AFFIXES)):
        last = np.take_along_axis(small, np.maximum(ends - 1 - i, 0)[..., None], 2)[..., 0]
        backwards = np.where(i < ends, _mix(backwards, last), backwards)
        if i + 1 in AFFIXES:
            suffixes.append(backwards)
    prefixes += [words] * (len(AFFIXES) - len(prefixes))  # if all words are shorter
    return Spelling(words, shapes, prefixes, suffixes)


def _number_buckets(known: Array) -> Array:
    """Return the row of W for each bucket; len(known) for the others."""
    columns = np.full(1 << BUCKET_BITS, len(known), np.int32)
    columns[known] = np.arange(len(known))
    return columns
