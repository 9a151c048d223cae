"""Linear taggers: a logistic regression of each step, or a CRF, over the words around it, their shapes and affixes.

Every feature is a pair of a template and a value, such as (suffix of length 3, "ing"), hashed to one of 2^22 buckets.
Buckets that occur once in training are left out. Tokens without letters (Chinese characters, ids) have only templates
of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.letters import FIRST_LETTER
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.kinds.baselines.module import BaselineModule, iterate_split, wrap
from seqloom.lab.kinds.for_task import ForTask, get_targets
from seqloom.lab.stats.metrics import Array
from seqloom.models.decoding.crf import CRF

WINDOW = 2  # steps before and after the one that is tagged
AFFIXES = (1, 2, 3, 4)  # lengths of prefixes and suffixes
FEWEST, MOST_FEATURES = 2, 400_000  # occurrences of a feature in training; number of features
MOST_STEPS = 600_000  # tokens that are fitted
EPOCHS, BATCH, RATE = 4, 256, 0.5  # of Adagrad; the best epoch on the validation rows counts
CHAIN_EPOCHS, CHAIN_RATE = 10, 0.3  # of a CRF; rate of its transitions
FEWEST_UPDATES = 500  # few rows are seen in more epochs
PATIENCE = 2  # epochs without a better loss on the validation rows, after which a fit ends
ROWS, POOL = 16, 512  # rows in a batch; rows among which those of similar length are found
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
        chain: (K + 2, K) of a CRF: A, its b and its c; empty if the tags of a row are independent.
    """

    known: Tensor
    W: Tensor
    b: Tensor
    lower: Tensor
    kinds: Tensor
    chain: Tensor
    fitted = ("W", "b", "chain")

    def __init__(
        self, known: Tensor, W: Tensor, b: Tensor, lower: Tensor, kinds: Tensor, chain: Tensor | None = None
    ) -> None:
        chain = W.new_zeros(0, 0) if chain is None else chain
        super().__init__(known=known, W=W, b=b, lower=lower, kinds=kinds, chain=chain)
        self.reads_letters = len(lower) > 0
        _check_arrays(known, W, b, lower, kinds, chain)
        if len(chain):
            self.crf = CRF(len(b)).requires_grad_(False)
            for parameter, values in zip((self.crf.A, self.crf.b, self.crf.c), (chain[:-2], *chain[-2:]), strict=True):
                parameter.copy_(values)
        self.columns = _number_buckets(known.cpu().numpy())

    def forward(self, x: Tensor, lengths: Tensor, letters: Tensor | None = None) -> Tensor:
        alphabet = (self.lower.cpu().numpy(), self.kinds.cpu().numpy())
        buckets = list_features(x.cpu().numpy(), lengths.cpu().numpy(), _to_numpy(letters), *alphabet)
        columns = self.columns[buckets]
        scores = torch.zeros(*x.shape, len(self.b), device=x.device)
        steps = torch.arange(x.shape[1], device=x.device) < lengths.unsqueeze(1)
        scores[steps] = F.embedding_bag(torch.from_numpy(columns).to(x.device), self.W, mode="sum") + self.b
        return scores


def _check_arrays(known: Tensor, W: Tensor, b: Tensor, lower: Tensor, kinds: Tensor, chain: Tensor) -> None:
    """Raise a UserError if arrays, which may come from a file, do not fit each other."""
    V, K, A = known.numel(), b.numel(), lower.numel()
    sizes = (V,), (V + 1, K), (K,), (A,), (A,), (K + 2, K) if chain.numel() else (0, 0)
    given = known, W, b, lower, kinds, chain
    types = (torch.int64, torch.float32, torch.float32, torch.int64, torch.int64, torch.float32)
    if [(t.shape, t.dtype) for t in given] != [
        (torch.Size(size), kind) for size, kind in zip(sizes, types, strict=True)
    ]:
        forms = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in given)
        raise UserError(f"the arrays of a tagger do not fit each other: known to chain are {forms}")
    limits = (known, 1 << BUCKET_BITS), (lower, A), (kinds, OTHER + 1)
    if any(t.numel() and (int(t.min()) < 0 or int(t.max()) >= limit) for t, limit in limits):
        raise UserError("the arrays of a tagger do not fit each other: known, lower or kinds have numbers out of range")


class _Fit:
    """The weights of a tagger while they are fitted by Adagrad (Duchi et al. 2011).

    Args:
        task: The data, of which at most MOST_STEPS steps are read.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.alphabet = task, _describe_alphabet(task)
        parts = [self._read(batch) for batch in _take(task, MOST_STEPS)]
        features, tags, lengths = (np.concatenate(part) for part in zip(*parts, strict=True))
        counts = np.bincount(features[tags >= 0].ravel(), minlength=1 << BUCKET_BITS)
        frequent = np.argsort(-counts, kind="stable")[:MOST_FEATURES]
        known = np.sort(frequent[counts[frequent] >= FEWEST])
        self.known, K = torch.from_numpy(known), task.target.size
        self.columns, self.tags = torch.from_numpy(_number_buckets(known)[features]), torch.from_numpy(tags)
        self.lengths: list[int] = lengths.tolist()
        self.W, self.b, self.squares = torch.zeros(len(known) + 1, K), torch.zeros(K), torch.ones(len(known) + 1)
        self.generator = torch.Generator().manual_seed(0)

    def _read(self, batch: Batch) -> tuple[Array, Array, Array]:
        """Return the features and the tags of all steps, and the lengths of the rows."""
        lengths, real = batch.lengths.numpy(), torch.arange(batch.x.shape[1]) < batch.lengths.unsqueeze(1)
        features = list_features(batch.x.numpy(), lengths, _to_numpy(batch.letters), *self.alphabet)
        return features, get_targets(batch)[real].numpy(), lengths

    def run(self, epoch: Callable[[], None], most: int, chain: Callable[[], Tensor | None] = lambda: None) -> ForTask:
        """Run up to `most` epochs; return the model with the lowest loss on the validation rows."""
        best, least, worse = self._build(chain()), np.inf, 0
        for _ in range(most):
            epoch()
            model = self._build(chain())
            loss = _validate(model, self.task)
            best, least, worse = (model, loss, 0) if loss < least else (best, least, worse + 1)
            if worse == PATIENCE:
                break
        return best

    def update(self, columns: Tensor, error: Tensor) -> None:
        """Make one step, with a rate for each feature in `columns` (n, F); error (n, K) is the gradient of scores."""
        rows, place = columns.flatten().unique(return_inverse=True)
        gradient = error.new_zeros(len(rows), error.shape[1])
        gradient.index_add_(0, place, error.repeat_interleave(columns.shape[1], 0))
        self.squares[rows] += gradient.square().sum(1)
        self.W[rows] -= gradient * (RATE / self.squares[rows].sqrt()).unsqueeze(1)
        self.W[-1] = 0  # the row of unknown features
        self.b -= RATE * error.mean(0)

    def _build(self, chain: Tensor | None) -> ForTask:
        lower, kinds = map(torch.from_numpy, self.alphabet)
        return wrap(self.task, WindowTagger(self.known, self.W.clone(), self.b.clone(), lower, kinds, chain))


def fit_window(task: Task) -> ForTask:
    """Fit by the cross-entropy of each tag; the validation rows choose the epoch."""
    fit = _Fit(task)
    steps = (fit.tags >= 0).nonzero().squeeze(1)

    def run_epoch() -> None:
        for part in steps[torch.randperm(len(steps), generator=fit.generator)].split(BATCH):
            columns, y = fit.columns[part], fit.tags[part]
            error = (F.embedding_bag(columns, fit.W, mode="sum") + fit.b).softmax(1)  # (n, K)
            error[torch.arange(len(y)), y] -= 1
            fit.update(columns, error)

    return fit.run(run_epoch, max(EPOCHS, FEWEST_UPDATES * BATCH // max(1, len(steps))))


def fit_window_crf(task: Task) -> ForTask:
    """Fit a linear-chain CRF to rows whose tags are all known; the validation rows choose the epoch."""
    fit, crf = _Fit(task), CRF(task.target.size)
    chain = torch.optim.Adagrad(crf.parameters(), CHAIN_RATE)
    steps = torch.arange(len(fit.tags)).split(fit.lengths)
    rows = [row for row in steps if len(row) and bool((fit.tags[row] >= 0).all())]

    def run_epoch() -> None:
        for part in _group(rows, fit.generator):
            lengths, at = torch.tensor([len(row) for row in part]), torch.cat(part)
            real = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
            e, y = torch.zeros(*real.shape, crf.tags), torch.zeros(real.shape, dtype=torch.long)
            e[real], y[real] = F.embedding_bag(fit.columns[at], fit.W, mode="sum") + fit.b, fit.tags[at]
            with torch.enable_grad():
                (-crf.log_likelihood(e.requires_grad_(), y, lengths).sum()).backward()
            assert e.grad is not None
            chain.step()
            chain.zero_grad()
            fit.update(fit.columns[at], e.grad[real])

    epochs = max(CHAIN_EPOCHS, FEWEST_UPDATES * ROWS // max(1, len(rows)))
    return fit.run(run_epoch, epochs, lambda: torch.cat([crf.A, crf.b[None], crf.c[None]]).detach())


def _group(rows: Sequence[Tensor], generator: torch.Generator) -> Iterator[list[Tensor]]:
    """Yield groups of random rows that are about equally long."""
    order = torch.randperm(len(rows), generator=generator).split(POOL)
    for pool in order:
        near = sorted((rows[i] for i in pool.tolist()), key=len)
        groups = [near[first : first + ROWS] for first in range(0, len(near), ROWS)]
        yield from (groups[i] for i in torch.randperm(len(groups), generator=generator).tolist())


def _take(task: Task, steps: int) -> Iterator[Batch]:
    """Yield training batches up to a number of steps."""
    count = 0
    for batch in iterate_split(task, "train"):
        yield batch
        count += batch.steps
        if count >= steps:
            return


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
