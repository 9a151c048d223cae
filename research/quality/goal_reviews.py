"""The goal on film reviews: a recurrent layer and a bag of word pairs, each with its own loss."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality.goal_recipe import Batch, Training, draw_by_length
from research.quality.goal_size import Size
from research.studies.data import text
from research.studies.data.examples import LabelledRows
from seqloom.core.init import Init
from seqloom.layers.readout import Readout
from seqloom.layers.recurrent.layer import Recurrent

WORDS, PAIRS, BAG = 30_000, 1 << 18, 1 << 20  # known words, hashed pairs with a vector, and words and pairs of the bag
LENGTH = 800  # words of a review
LENGTHS = (128, 176, 240, 360, LENGTH)  # words of the reviews of one batch
BAG_SCALE = 0.1  # of the sum over a few hundred terms, so that its size is that of a logit
MIXES = tuple(i / 20 for i in range(21))  # weights of the bag that are tried on validation rows


@cache
def read_reviews(words: int, every: int, device: torch.device) -> dict[str, LabelledRows]:
    """Return reviews of up to `words` words; training reviews that are also in the test set are dropped."""
    (texts, y), test = text.imdb("train", words, every), text.imdb("test", words, every)
    tested = {" ".join(one) for one in test[0]}
    places = [i for i, one in enumerate(texts) if " ".join(one) not in tested]
    train = [texts[i] for i in places], [y[i] for i in places]
    ids = text.vocabulary(train[0], WORDS)
    rows = text.encode(train, ids, words).shuffle().to(device)
    held = min(2_500, len(rows) // 10)
    valid, tested_rows = rows.part(0, held), text.encode(test, ids, words).shuffle().to(device)
    return {"train": rows.part(held, len(rows)), "valid": valid, "test": tested_rows}


def hash_pairs(x: Tensor, first: int, size: int) -> Tensor:
    """Return an id from `first` to size - 1 for each word (B, T) and the word before it; 0 without one of them."""
    before = F.pad(x[:, :-1], (1, 0))
    pairs = (x * 1_000_003 + before * 7_919) % (size - first) + first
    return torch.where((x > 0) & (before > 0), pairs, 0)


def list_terms(x: Tensor) -> Tensor:
    """Return the ids of the words and pairs of each review (B, 2 T), each once, and zeros."""
    terms = torch.cat([x, hash_pairs(x, WORDS, BAG)], 1).sort(1).values
    return terms.masked_fill(F.pad(terms[:, 1:] == terms[:, :-1], (1, 0)), 0)


@cache
def read_terms(words: int, every: int, device: torch.device) -> tuple[dict[str, Tensor], Tensor]:
    """Return the terms of the reviews of each split, and the log-odds of each term in the training reviews."""
    data = read_reviews(words, every, device)
    terms = {
        name: torch.cat([list_terms(x) for x in rows.x.split(1_000)]).to(torch.int32) for name, rows in data.items()
    }
    counts = []
    for label in (1, 0):
        rows = terms["train"][data["train"].y == label].flatten().long()
        count = torch.bincount(rows, minlength=BAG).float() + 1
        counts.append(torch.log(count / count[1:].sum()))
    odds = counts[0] - counts[1]
    odds[0] = 0.0
    return terms, odds


class ReviewClassifier(nn.Module):
    """Log-odds of a recurrent layer over words and hashed pairs, and of a bag of the same (Wang & Manning 2012)."""

    odds: Tensor

    def __init__(self, layer: Recurrent, width: int, pairs: int, size: Size, odds: Tensor) -> None:
        super().__init__()
        self.size, self.word_dropout, self.buckets = size, 0.25, 1_024 if size.tiny else PAIRS
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.pairs = nn.Embedding(self.buckets, pairs, padding_idx=0)
        with torch.no_grad():
            self.words.weight *= 0.1
            self.pairs.weight *= 0.01
        self.layer, self.readout = layer, Readout("max_mean", layer.output_size, layer.bidirectional)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(self.readout.output_size + width + pairs, 1)
        self.register_buffer("odds", odds, persistent=False)
        self.bag = nn.Embedding(BAG, 1)  # changes of the log-odds, in thirds
        nn.init.zeros_(self.bag.weight)
        self.bag_bias = nn.Parameter(torch.zeros(()))
        self.mix = 0.5  # weight of the bag, chosen on validation rows

    def forward(self, x: Tensor, lengths: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
        """Return two log-odds (B,): of the recurrent layer and of the bag."""
        pairs = hash_pairs(x, 1, self.buckets)
        if self.training:
            kept = torch.rand(x.shape, device=x.device) >= self.word_dropout
            pairs = torch.where(kept, pairs, 0)
            x = torch.where(kept | (x == 0), x, text.OTHER)
        w, p = self.words(x), self.pairs(pairs)
        with self.size.low():
            y, _ = self.layer(self.dropout(torch.cat([w, p], -1)), lengths=lengths)
        n = lengths.unsqueeze(1)
        parts = [self.readout(y.float(), lengths), w.sum(1) / n, p.sum(1) / n]
        recurrent = self.head(self.dropout(torch.cat(parts, -1))).squeeze(1)
        ids = terms.long()
        bag = ((1 + 3 * self.bag(ids).squeeze(-1)) * self.odds[ids]).sum(1) * BAG_SCALE + self.bag_bias
        return recurrent, bag


def classify_reviews(cell: str, seed: int, size: Size) -> Training:
    """Return a training on IMDB reviews with this cell, in both directions."""
    length, every = (60, 200) if size.tiny else (LENGTH, 1)
    data, B, H = read_reviews(length, every, size.device), size.batch(64), size.units(128)
    terms, odds = read_terms(length, every, size.device)
    train, width, pairs = data["train"], size.units(128), size.units(64)

    def build() -> nn.Module:
        layer = Recurrent(cell, width + pairs, H, batch_first=True, bidirectional=True, init=Init("orthogonal"))
        return ReviewClassifier(layer, width, pairs, size, odds)

    def take(places: Tensor, longest: int) -> Batch:
        rows = train.rows(places)
        own = terms["train"].index_select(0, places)[:, -2 * longest :]  # zeros stand first
        return rows.x[:, :longest], rows.lengths, own, rows.y.float()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        *inputs, y = batch
        recurrent, bag = model(*inputs)
        smooth = 0.05 + 0.9 * y
        return F.binary_cross_entropy_with_logits(recurrent, smooth) + F.binary_cross_entropy_with_logits(bag, y)

    def score(model: nn.Module, split: str) -> dict[str, float]:
        return score_together([model], split)

    def score_together(models: list[nn.Module], split: str) -> dict[str, float]:
        """Score the mean of the models' log-odds; the weight of the bag is chosen on validation rows."""
        rows = data[split].part(0, size.rows(25_000))
        order = rows.lengths.argsort()
        logits = torch.empty(len(rows), 2, device=size.device)
        for places in order.split(1_000):
            longest = int(rows.lengths[places].max())
            x, n, t = rows.x[places, :longest], rows.lengths[places], terms[split][places, -2 * longest :]
            logits[places] = torch.stack([torch.stack(model(x, n, t), 1) for model in models]).mean(0)
        right = rows.y.bool()

        def rate(mix: float) -> float:
            return float((((1 - mix) * logits[:, 0] + mix * logits[:, 1] > 0) == right).float().mean())

        if split == "valid":
            setattr(models[0], "mix", max(MIXES, key=rate))  # noqa: B010
        mix = float(getattr(models[0], "mix"))  # noqa: B009
        return {"accuracy": rate(mix), "recurrent": rate(0.0), "bag": rate(1.0), "mix": mix}

    bounds = (length,) if size.tiny else LENGTHS
    settings = {"model": f"bi_{cell}", "hidden": H, "batch": B, "words": length, "vocabulary": WORDS, "epochs": 4}
    settings |= {"hashed_pairs": PAIRS, "bag": BAG, "readout": "max_mean", "dropout": 0.5, "word_dropout": 0.25}
    settings |= {"label_smoothing": 0.1, "precision": "bf16"}
    return Training(
        "imdb", f"bi_{cell} and bag", seed, build, draw_by_length(train.lengths, bounds, B, take), loss, score,
        size.steps(4 * 22_500 // 64), 3e-3, settings, ema=0.995, score_every=1 / 8, keep="accuracy",
        together=score_together,
    )  # fmt: skip


def imdb(seed: int, size: Size) -> Training:
    return classify_reviews("gru", seed, size)
