"""Baselines as modules of tensors: what numpy and sparse matrices compute, in operators that `torch.export` traces.

Inputs and outputs are those of the baseline. n-grams are counted in the graph, so that an exported baseline reads ids
and lengths, as every model does.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from seqloom.core.masks import make_mask
from seqloom.lab.data.task import END, PAD
from seqloom.lab.kinds.baselines import window
from seqloom.lab.kinds.baselines.boosting import LagTrees
from seqloom.lab.kinds.baselines.dtw import NearestSeries
from seqloom.lab.kinds.baselines.features import LetterNgrams, Ngrams, Overlap, SeriesFeatures, WordsAndLetters
from seqloom.lab.kinds.baselines.linear import Linear
from seqloom.lab.kinds.baselines.module import BaselineModule
from seqloom.lab.kinds.baselines.rocket import CENTRE, KERNEL_LENGTH, KERNELS, UNSEEN_SCORE, Rocket
from seqloom.lab.kinds.for_task import ForTask

CLASSES_AT_ONCE = 16  # columns of W that are multiplied at once, to bound memory
MOST_VALUES = 1 << 24  # values of the largest tensor of a batch; a module's `batch_steps` or `batch_rows` have as many
MOST_TEMPLATES = 32  # features of a step of a tagger, about
BIASES = 4  # thresholds of MiniROCKET that are compared at once
PAIR_BASE = 1 << 31  # larger than any id
MIXER = int(window.MIXER) - (1 << 64)  # as a signed integer, whose products wrap in the same way


def make_traceable(model: ForTask) -> ForTask:
    """Return a copy of a model whose baseline `torch.export` can trace; the model itself if it is not a baseline."""
    module = model.model
    if not isinstance(module, BaselineModule):
        return model
    model = copy.deepcopy(model)
    graph: Any = GRAPHS[type(module)](module) if type(module) in GRAPHS else model.model
    graph.crf, graph.reads_letters = module.crf, module.reads_letters
    model.model = graph
    return model


class SearchTable(nn.Module):
    """An ascending table of integers (N,), searched by bisection."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.size, self.bits = len(values), len(values).bit_length()
        rest = torch.full(((1 << self.bits) - self.size,), torch.iinfo(torch.int64).max)
        self.register_buffer("padded", torch.cat([values[:1], values, rest]))  # an entry is at its place + 1

    def forward(self, values: Tensor) -> Tensor:
        """Return the places of values; N for those that are not in the table."""
        padded, at = self.get_buffer("padded"), torch.zeros_like(values)
        for bit in reversed(range(self.bits)):
            ahead = at + (1 << bit)
            at = torch.where(padded[ahead] < values, ahead, at)
        return torch.where(padded[at + 1] == values, at, self.size)


class LinearGraph(nn.Module):
    """`Linear` without attributes of rows."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear, self.product = linear, make_product(linear.features, linear.W)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.linear.link_scores(self.product(x, lengths) + self.linear.b)


def make_product(features: Any, W: Tensor) -> nn.Module:  # noqa: ANN401  # a feature map
    """Return the module that computes W f (B, K) in float64 from the features f of rows."""
    if isinstance(features, WordsAndLetters):
        return SumOfProducts(features, W)
    kinds: dict[type, Any] = {
        Ngrams: NgramProduct,
        LetterNgrams: LetterProduct,
        SeriesFeatures: SeriesProduct,
        Overlap: OverlapProduct,
    }
    return kinds[type(features)](features, W)


class SumOfProducts(nn.Module):
    """W f for the n-grams of words and, after them, those of characters."""

    def __init__(self, features: WordsAndLetters, W: Tensor) -> None:
        super().__init__()
        words, letters = features.parts["words"], features.parts["letters"]
        self.words = make_product(words, W[:, : len(words.idf)])
        self.letters = make_product(letters, W[:, len(words.idf) :])

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.words(x, lengths) + self.letters(x, lengths)


class SparseProduct(nn.Module):
    """W f for TF-IDF features f, given the row and the column of each n-gram.

        f = g / |g|,   g_c = (1 + log n_c) idf_c      n_c: how often column c occurs in the row

    Args:
        idf: (C,).
        W: (K, C).
    """

    def __init__(self, idf: Tensor, W: Tensor) -> None:
        super().__init__()
        self.register_buffer("idf", torch.cat([idf.double(), idf.new_zeros(1).double()]))  # the last: unknown n-grams
        self.register_buffer("W", torch.cat([W, W.new_zeros(len(W), 1)], 1).T.contiguous())  # (C + 1, K)

    def forward(self, row: Tensor, column: Tensor, rows: int) -> Tensor:
        """Map rows and columns (N,), of which column C is unknown, to (rows, K)."""
        idf, W = self.get_buffer("idf"), self.get_buffer("W")
        key = (row * len(idf) + column).sort().values  # equal n-grams of a row are neighbours
        is_first = torch.cat([torch.ones_like(key[:1]), (key[1:] != key[:-1]).long()])
        run = is_first.cumsum(0) - 1
        n = torch.zeros_like(key).scatter_add(0, run, torch.ones_like(key))[run]
        row, column = key // len(idf), key % len(idf)
        g = (1 + n.double().log()) * idf[column] * is_first
        square = g.new_zeros(rows).scatter_add(0, row, g * g)
        parts = []
        for some in W.split(CLASSES_AT_ONCE, 1):
            K = some.shape[1]
            terms = g.unsqueeze(1) * some[column]
            parts.append(g.new_zeros(rows, K).scatter_add(0, row.unsqueeze(1).expand(-1, K), terms))
        norm = square.sqrt().unsqueeze(1)
        return torch.cat(parts, 1) / torch.where(norm > 0, norm, 1.0)


class NgramProduct(nn.Module):
    """W f for `Ngrams`."""

    def __init__(self, features: Ngrams, W: Tensor) -> None:
        super().__init__()
        self.base, self.orders = features.base, features.orders
        self.known = SearchTable(torch.from_numpy(features.known))
        self.product = SparseProduct(torch.from_numpy(features.idf), W)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        B, T = x.shape
        steps, codes, inside = torch.arange(T), [], []
        for n in self.orders:
            padded, code = F.pad(x, (0, n - 1)), torch.zeros_like(x)
            for k in range(n):
                code = code * self.base + padded[:, k : k + T]
            codes.append(code + n * self.base ** max(self.orders))
            inside.append(steps <= (lengths - n).unsqueeze(1))
        column = torch.where(torch.stack(inside), self.known(torch.stack(codes)), self.known.size)
        row = torch.arange(B).view(1, B, 1).expand_as(column)
        return self.product(row.flatten(), column.flatten(), B)


class LetterProduct(nn.Module):
    """W f for `LetterNgrams`: each word is replaced by its n-grams, those that occur twice in it by two."""

    def __init__(self, features: LetterNgrams, W: Tensor) -> None:
        super().__init__()
        spelling = features.spelling
        times = spelling.data.astype(np.int64)
        columns = np.repeat(spelling.indices.astype(np.int64), times)
        starts = np.concatenate([[0], np.cumsum(times)])[spelling.indptr]
        self.register_buffer("starts", torch.from_numpy(starts))
        self.register_buffer("columns", torch.from_numpy(np.append(columns, 0)))
        self.product = SparseProduct(torch.from_numpy(features.idf), W)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        B, T = x.shape
        starts, columns = self.get_buffer("starts"), self.get_buffer("columns")
        word = torch.where(make_mask(lengths, T), x, PAD).flatten()  # padding has no n-grams
        count = starts[word + 1] - starts[word]
        first = count.cumsum(0) - count  # place of the first n-gram of each word among all
        N: Any = count.sum().item()
        torch._check(N >= 0)
        owner = (
            torch.zeros_like(first[:1]).expand(N + 1).scatter_add(0, first, torch.ones_like(first)).cumsum(0)[:N] - 1
        )
        column = columns[starts[word[owner]] + torch.arange(N) - first[owner]]
        every = torch.arange(B)  # one unknown n-gram in each row, so that there is at least one
        row, column = (
            torch.cat([owner // T, every]),
            torch.cat([column, torch.full_like(every, len(self.product.get_buffer("idf")) - 1)]),
        )
        return self.product(row, column, B)


class SeriesProduct(nn.Module):
    """W f for `SeriesFeatures`."""

    def __init__(self, features: SeriesFeatures, W: Tensor) -> None:
        super().__init__()
        for name, value in (("mean", features.mean), ("scale", features.scale)):
            self.register_buffer(name, torch.from_numpy(np.asarray(value, dtype=np.float64)))
        self.register_buffer("W", W.double())
        self.register_buffer("places", torch.linspace(0, 1, features.points, dtype=torch.float64))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x, n = x.double(), lengths.clamp(min=1).unsqueeze(1)  # (B, T, D), (B, 1)
        real = make_mask(lengths.clamp(min=1), x.shape[1]).unsqueeze(-1)
        mean = (x * real).sum(1) / n
        deviation = (((x - mean.unsqueeze(1)) * real).square().sum(1) / n).sqrt()
        low = torch.where(real, x, torch.inf).amin(1)
        high = torch.where(real, x, -torch.inf).amax(1)
        change = (F.pad(x, (0, 0, 0, 1))[:, 1:] - x).abs() * F.pad(real, (0, 0, 0, 1))[:, 1:]
        rough = change.sum(1) / (n - 1).clamp(min=1)
        at = self.get_buffer("places") * (n - 1)  # (B, points)
        before = at.floor().long()
        share = (at - before).unsqueeze(-1)
        values = (1 - share) * take(x, before) + share * take(x, torch.minimum(before + 1, n - 1))
        summary = torch.cat([mean, deviation, low, high, x[:, 0], take(x, n - 1)[:, 0], rough], 1)
        f = (torch.cat([summary, values.flatten(1)], 1) - self.get_buffer("mean")) / self.get_buffer("scale")
        return f @ self.get_buffer("W").T


def take(x: Tensor, at: Tensor) -> Tensor:
    """Return the steps `at` (B, N) of x (B, T, D)."""
    return x.gather(1, at.unsqueeze(-1).expand(-1, -1, x.shape[2]))


class OverlapProduct(nn.Module):
    """W f for `Overlap`."""

    def __init__(self, features: Overlap, W: Tensor) -> None:
        super().__init__()
        self.register_buffer("W", W.double())

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        T = x.shape[1]
        steps, real = torch.arange(T), make_mask(lengths, T)
        cut = ((x == END) & real).long().cumsum(1).eq(0).logical_and(real).sum(1, keepdim=True)  # steps of the first
        a, b = steps < cut, real & (steps > cut)
        pairs = x * PAIR_BASE + F.pad(x, (0, 1))[:, 1:]
        a_pairs, b_pairs = (one & F.pad(one, (0, 1))[:, 1:] for one in (a, b))
        n, m = a.sum(1), b.sum(1)
        same = (x == x.gather(1, (steps + cut + 1).clamp(max=T - 1))) | ~a
        off = (n - m).abs() / torch.maximum(n, m).clamp(min=1)
        last = [off, (same.all(1) & (n == m)).to(off)]
        f = torch.stack([*share_sets(x, a, b), *share_sets(pairs, a_pairs, b_pairs), *last], 1)
        return f.double() @ self.get_buffer("W").T


def share_sets(x: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
    """Return the distinct values of x (B, T) that masks a and b share, as parts of their union, of a and of b."""
    steps = torch.arange(x.shape[1])
    equal = x.unsqueeze(2) == x.unsqueeze(1)
    earlier = equal & (steps.unsqueeze(0) < steps.unsqueeze(1))
    new_a, new_b = (one & ~(earlier & one.unsqueeze(1)).any(2) for one in (a, b))
    common = (new_a & (equal & b.unsqueeze(1)).any(2)).sum(1)
    n, m = new_a.sum(1), new_b.sum(1)
    return [common / total.clamp(min=1) for total in (n + m - common, n, m)]


class RocketGraph(nn.Module):
    """`Rocket`: a scan over dilations, with BIASES thresholds at a time.

    The order of sums is that of `Rocket`, because a feature counts the values above a threshold.
    """

    def __init__(self, rocket: Rocket) -> None:
        super().__init__()
        (_, K, D), counts = rocket.channels.shape, rocket.counts.tolist()
        parts = [(i, at) for i, count in enumerate(counts) for at in range(0, count, BIASES)]  # dilation, first bias
        most = int(rocket.channels.sum(2).max())
        order = (~rocket.channels).to(torch.uint8).argsort(dim=2, stable=True)[..., :most]  # channels that are added up
        channels = torch.where(rocket.channels.gather(2, order), order, D)  # (n, 84, most); D is a channel of zeros
        biases, columns, start = torch.full((len(parts), K, BIASES), torch.inf), [], 0
        places = torch.arange(biases.numel()).view(biases.shape)
        for i, count in enumerate(counts):
            own = torch.tensor([number for number, part in enumerate(parts) if part[0] == i], dtype=torch.long)
            values = F.pad(
                rocket.biases[start : start + K * count].view(K, count), (0, -count % BIASES), value=torch.inf
            )
            biases[own] = values.view(K, -1, BIASES).transpose(0, 1)
            columns.append(places[own].transpose(0, 1).reshape(K, -1)[:, :count].flatten())
            start += K * count
        dilation = torch.tensor([i for i, _ in parts], dtype=torch.long)
        self.register_buffer("dilation", rocket.dilations[dilation])
        self.register_buffer("reads_all", (dilation.unsqueeze(1) + torch.arange(K)) % 2 == 0)  # (parts, 84)
        self.width = 1 if D == 1 else K  # series that are shifted
        self.register_buffer("channels", channels[dilation, : self.width])
        self.register_buffer("biases", biases)
        self.register_buffer("columns", torch.cat(columns))  # of each feature, among those of all parts
        self.register_buffer("W", rocket.W)
        self.register_buffer("b", rocket.b)
        self.batch_steps = MOST_VALUES // max(K * BIASES, self.width * KERNEL_LENGTH)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        B, T, _ = x.shape
        steps, ends = torch.arange(T), lengths.clamp(min=1).unsqueeze(1)
        series = 0 if self.width == 1 else torch.arange(self.width)
        chosen = [torch.tensor(taps) * self.width + series for taps in zip(*KERNELS, strict=True)]
        every, most = (steps < ends).unsqueeze(1), lengths.max()
        taps = torch.arange(KERNEL_LENGTH).unsqueeze(1) - CENTRE
        padded = F.pad(x, (0, 1, 1, 1)).transpose(1, 2)  # (B, D + 1, T + 2)

        def step(carry: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            """Return the shares (B, 84, BIASES) of the steps above some thresholds."""
            dilation, reads_all, channels, biases = now
            at = torch.minimum((steps + taps * dilation).clamp(min=-1), most) + 1  # (9, T); zeros outside of the series
            total = padded.index_select(1, channels[:, 0])  # (B, 84, T + 2), or (B, 1, T + 2) for one channel
            for k in range(1, channels.shape[1]):
                total = total + padded.index_select(1, channels[:, k])
            shifted = [total.index_select(2, at[j]) for j in range(KERNEL_LENGTH)]
            stacked = torch.cat(shifted, 1)
            a, b, c = (stacked.index_select(1, tap) for tap in chosen)
            C = 3 * (a + b + c) - sum(shifted[1:], shifted[0])
            margin = CENTRE * dilation
            inside = ((steps >= margin) & (steps < ends - margin)).unsqueeze(1)
            real = inside | (every & (reads_all.unsqueeze(1) | ~inside.any(2, keepdim=True)))  # (B, 84, T)
            above = ((biases.unsqueeze(2) < C.unsqueeze(2)) & real.unsqueeze(2)).float().sum(3)
            return carry.clone(), above / real.float().sum(2, keepdim=True)

        parts = tuple(self.get_buffer(name) for name in ("dilation", "reads_all", "channels", "biases"))
        _, f = scan(step, torch.zeros(1), parts)  # (parts, B, 84, BIASES)
        f = f.transpose(0, 1).reshape(B, -1).index_select(1, self.get_buffer("columns"))
        return f @ self.get_buffer("W").T + self.get_buffer("b")


class NearestGraph(nn.Module):
    """`NearestSeries`: a scan over the antidiagonals k = i + j of all tables; a cell is at its offset i - j.

    Each diagonal has every second offset. A table holds the last two: the neighbours of a cell are beside it, and the
    cell of step (i - 1, j - 1) is where the new one is written.
    """

    def __init__(self, nearest: NearestSeries) -> None:
        super().__init__()
        self.window, self.scale, T = nearest.window, nearest.scale, int(nearest.lengths.max())
        self.classes = [(nearest.y == k).nonzero().squeeze(1).tolist() for k in range(nearest.classes)]
        self.register_buffer("x", nearest.x[:, :T].clone())
        self.register_buffer("lengths", nearest.lengths)
        self.batch_steps = MOST_VALUES // (nearest.x.shape[0] * nearest.x.shape[2])

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        stored, stored_lengths = self.get_buffer("x"), self.get_buffer("lengths")
        (M, T, _), (B, S, _) = stored.shape, x.shape
        off = lengths.unsqueeze(1) - stored_lengths  # (B, M)
        w: Any = off.abs().max().item() + self.window
        torch._check(w >= 0)
        offsets = torch.arange(2 * w + 1) - w
        place, most = (off + w).unsqueeze(2), lengths.max() - 1
        outside = torch.where(offsets.abs() <= (self.window + off.abs()).unsqueeze(2), 0.0, torch.inf)

        def step(table: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
            """Fill diagonal k of tables (B, M, 2 w + 1)."""
            a = x.index_select(1, torch.minimum(((k + offsets) // 2).clamp(min=0), most))  # (B, 2 w + 1, D)
            b = stored.index_select(1, ((k - offsets) // 2).clamp(0, T - 1))  # (M, 2 w + 1, D)
            padded = F.pad(table, (1, 1), value=torch.inf)
            best = torch.minimum(torch.minimum(padded[..., 2:], padded[..., :-2]), table)
            cells = (a.unsqueeze(1) - b).square().sum(3) + outside + best
            table = torch.where((k + offsets) % 2 == 0, cells, table)
            return table, table.gather(2, place).squeeze(2)

        start = torch.where(offsets == 0, 0.0, torch.inf).expand(B, M, -1).clone()  # the cell before the first steps
        _, ends = scan(step, start, torch.arange(S + T - 1))  # (S + T - 1, B, M)
        last = (lengths.unsqueeze(1) + stored_lengths - 2).clamp(min=0)
        distances = ends.gather(0, last.unsqueeze(0)).squeeze(0)
        far = torch.full_like(distances[:, 0], torch.inf)
        nearest = torch.stack([distances[:, of].amin(1) if of else far for of in self.classes], 1)
        scores = torch.where(nearest.isinf(), torch.inf, -self.scale * nearest)
        lowest = scores.amin(1, keepdim=True).clamp(max=0) + UNSEEN_SCORE
        return torch.where(scores.isinf(), lowest, scores)


class TreesGraph(nn.Module):
    """`LagTrees`, all windows at once."""

    def __init__(self, trees: LagTrees) -> None:
        super().__init__()
        self.trees = trees
        self.batch_rows = MOST_VALUES // (len(trees.value) * trees.sizes[0] * trees.sizes[1])

    def forward(self, x: Tensor, lengths: Tensor, future: Tensor | None = None) -> Tensor:
        return self.trees.forecast(x, lengths, future)


class WindowGraph(nn.Module):
    """`WindowTagger`, whose hashes are signed integers here."""

    def __init__(self, tagger: window.WindowTagger) -> None:
        super().__init__()
        self.known = SearchTable(tagger.known)
        for name in ("W", "b", "lower", "kinds"):
            self.register_buffer(name, getattr(tagger, name))
        self.batch_steps = MOST_VALUES // (MOST_TEMPLATES * len(tagger.b))

    def forward(self, x: Tensor, lengths: Tensor, letters: Tensor | None = None) -> Tensor:
        real, W = make_mask(lengths, x.shape[1]), self.get_buffer("W")
        if letters is None:
            words = mix(x, 1)
            at_step: list[Tensor] = []
            near: list[Tensor] = []
        else:
            words, at_step, near = self._spell(letters)
        around = {k: shift(words, real, k) for k in range(-window.WINDOW, window.WINDOW + 1)}
        columns = [*around.values(), *at_step]
        columns += [mix(around[k], around[k + 1]) for k in range(-window.WINDOW, window.WINDOW)]
        columns += [mix(around[-1], around[1]), mix(mix(around[-1], around[0]), around[1])]
        columns += [shift(value, real, k) for value in near for k in (-1, 0, 1)]
        templates = torch.arange(len(columns)).view(-1, 1, 1)
        places = self.known(shift_right(mix(torch.stack(columns), templates), 64 - window.BUCKET_BITS))
        return (W[places].sum(0) + self.get_buffer("b")) * real.unsqueeze(-1)

    def _spell(self, letters: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Return the words (B, T), the features of a step alone, and those that are read at its neighbours, too."""
        letters = F.pad(letters, (0, max(window.AFFIXES)))
        small, kind = self.get_buffer("lower")[letters], self.get_buffer("kinds")[letters]  # (B, T, C)
        ends = (letters != PAD).sum(2)
        nothing = torch.zeros_like(ends)

        def step(carry: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
            """Read letter i of all words."""
            words, shapes, before = carry
            letter, kind, i = now
            words = torch.where(i < ends, mix(words, letter), words)
            shapes = torch.where((i < ends) & (kind != before), mix(shapes, kind), shapes)
            return (words, shapes, kind.clone()), words.clone()

        by_letter = small.movedim(2, 0), kind.movedim(2, 0), torch.arange(letters.shape[2])
        (words, shapes, _), starts = scan(step, (nothing, nothing.clone(), nothing.clone()), by_letter)
        prefixes, suffixes, backwards = [starts[n - 1] for n in window.AFFIXES], [], nothing
        for i in range(max(window.AFFIXES)):
            last = small.gather(2, (ends - 1 - i).clamp(min=0).unsqueeze(-1)).squeeze(-1)
            backwards = torch.where(i < ends, mix(backwards, last), backwards)
            if i + 1 in window.AFFIXES:
                suffixes.append(backwards)
        return words, [*prefixes, *suffixes], [shapes, suffixes[-2]]


def shift_right(a: Tensor, bits: int) -> Tensor:
    """Shift 64-bit integers without keeping the sign."""
    return (a >> bits) & ((1 << (64 - bits)) - 1)


def mix(a: Tensor, b: Tensor | int) -> Tensor:
    """Return a 64-bit hash of pairs."""
    h = (a ^ shift_right(a, 29)) * MIXER + b + 1
    return (h ^ shift_right(h, 32)) * MIXER


def shift(values: Tensor, real: Tensor, k: int) -> Tensor:
    """Return at each step the value k steps later, or 0 outside the row."""
    padded = F.pad(torch.where(real, values, 0), (window.WINDOW, window.WINDOW))
    return padded[:, window.WINDOW + k : window.WINDOW + k + values.shape[1]]


GRAPHS: dict[type, Any] = {
    Linear: LinearGraph,
    Rocket: RocketGraph,
    NearestSeries: NearestGraph,
    LagTrees: TreesGraph,
    window.WindowTagger: WindowGraph,
}
