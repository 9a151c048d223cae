"""Train towards fixed goals, by one recipe each: python benchmarks/quality/goals.py --goals smnist copy --seeds 0 1.

Each training that ends appends a line to the ledger: the scores, the settings, the seed, the command, the hardware and
the versions. Settings were chosen on validation rows; the test rows are read once, with the last weights.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.init import Init
from seqloom.lab.studies.data import text
from seqloom.lab.studies.data.examples import LabelledRows
from seqloom.lab.studies.data.mnist import PIXELS, mnist
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.readout import Readout
from seqloom.layers.recurrent.layer import Recurrent

sys.path.insert(0, str(Path(__file__).parent))
from goal_training import Batch, Training, train_all


@dataclass(frozen=True)
class Size:
    """How much to train; `tiny` is a check that everything runs."""

    device: torch.device
    tiny: bool

    def steps(self, full: int) -> int:
        return 6 if self.tiny else full

    def units(self, full: int) -> int:
        return 16 if self.tiny else full

    def batch(self, full: int) -> int:
        return 4 if self.tiny else full

    def rows(self, full: int) -> int:
        return min(full, 32) if self.tiny else full

    def length(self, full: int) -> int:
        return max(24, full // 100) if self.tiny else full

    def low(self) -> torch.autocast:
        """Return a context for bfloat16 products on a GPU."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


Recipe = Callable[[int, Size], Training]


# Images, pixel by pixel


@cache
def read_images(permuted: bool, device: torch.device) -> dict[str, LabelledRows]:
    """Return 55,000, 5,000 and 10,000 images, in reading order or in one random order."""
    order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0)) if permuted else torch.arange(PIXELS)
    parts = {}
    for name in ("train", "test"):
        rows = mnist(name).shuffle()
        parts[name] = LabelledRows(rows.x.index_select(1, order), rows.lengths, rows.y).to(device)
    return {"train": parts["train"].part(5_000, 60_000), "valid": parts["train"].part(0, 5_000), "test": parts["test"]}


class ResidualStack(nn.Module):
    """Recurrent layers of one width; each after the first adds its input to its output."""

    def __init__(self, layers: list[Recurrent], dropout: float) -> None:
        super().__init__()
        self.layers, self.dropout = nn.ModuleList(layers), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layers[0](x)
        for layer in list(self.layers)[1:]:
            y = y + layer(self.dropout(y))[0]
        return y


class ScanBlocks(nn.Module):
    """Residual blocks of a linear recurrence (minGRU) and an MLP, with normalised inputs."""

    def __init__(self, width: int, blocks: int, dropout: float) -> None:
        super().__init__()
        self.read = nn.Linear(1, width)
        self.mixers = nn.ModuleList(Recurrent("min_gru", width, width, batch_first=True) for _ in range(blocks))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * blocks + 1))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.read(x)
        for i, (mixer, out, mlp) in enumerate(zip(self.mixers, self.outs, self.mlps, strict=True)):
            h = h + self.dropout(out(mixer(self.norms[2 * i](h))[0]))
            h = h + self.dropout(mlp(self.norms[2 * i + 1](h)))
        return self.norms[-1](h)


class PixelClassifier(nn.Module):
    """Read bytes (B, T) and predict ten digits from the last or the mean output."""

    def __init__(self, body: nn.Module, width: int, mean: bool, dropout: float, pixel_dropout: float) -> None:
        super().__init__()
        self.body, self.mean, self.pixels = body, mean, nn.Dropout(pixel_dropout)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(self.pixels((x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081))
        return self.head(self.dropout(y.mean(1) if self.mean else y[:, -1])).float()


def classify_pixels(
    goal: str,
    recipe: str,
    seed: int,
    size: Size,
    body: Callable[[], nn.Module],
    width: int,
    *,
    epochs: int,
    lr: float,
    batch: int = 128,
    mean: bool = False,
    dropout: float = 0.2,
    pixel_dropout: float = 0.0,
    weight_decay: float = 0.01,
    smoothing: float = 0.0,
    ema: float = 0.999,
    **settings: object,
) -> Training:
    """Return a training on sequential ("smnist") or permuted ("psmnist") MNIST."""
    data = read_images(goal == "psmnist", size.device)
    train, B = data["train"], size.batch(batch)
    cut = size.length(PIXELS) if size.tiny else PIXELS

    def draw(random: torch.Generator) -> Batch:
        rows = train.rows(torch.randint(len(train), (B,), generator=random, device=size.device))
        return rows.x[:, :cut], rows.y

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with size.low():
            scores = model(batch[0])
        return F.cross_entropy(scores, batch[1], label_smoothing=smoothing)

    def score(model: nn.Module, split: str) -> dict[str, float]:
        rows, right = data[split].part(0, size.rows(10_000)), 0
        for x, y in zip(rows.x.split(1_000), rows.y.split(1_000), strict=True):
            with size.low():
                right += int((model(x[:, :cut]).argmax(-1) == y).sum())
        return {"accuracy": right / len(rows)}

    described = {"epochs": epochs, "batch": B, "dropout": dropout, "pixel_dropout": pixel_dropout, "mean": mean}
    return Training(
        goal, recipe, seed,
        lambda: PixelClassifier(body(), width, mean, dropout, pixel_dropout),
        draw, loss, score, size.steps(epochs * 55_000 // batch), lr,
        described | {"label_smoothing": smoothing, "precision": "bf16"} | settings,
        weight_decay=weight_decay, ema=ema, score_every=0.05,
    )  # fmt: skip


def smnist(seed: int, size: Size) -> Training:
    H, zoneout = size.units(128), 0.05
    dropouts = Dropouts(zoneout=zoneout)

    def body() -> nn.Module:
        return ResidualStack([Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)], 0.0)

    return classify_pixels(
        "smnist", "attn_rnn", seed, size, body, H, epochs=100, lr=2e-3, model="attn_rnn", hidden=H, zoneout=zoneout
    )


def smnist_wide(seed: int, size: Size) -> Training:
    H, dropouts = size.units(256), Dropouts(recurrent=0.1, zoneout=0.05)

    def body() -> nn.Module:
        return ResidualStack([Recurrent("attn_rnn", 1, H, batch_first=True, dropouts=dropouts)], 0.0)

    return classify_pixels(
        "smnist", "attn_rnn, 256 units", seed, size, body, H, epochs=80, lr=2e-3, model="attn_rnn", hidden=H,
        zoneout=0.05, recurrent_dropout=0.1, pixel_dropout=0.05,
    )  # fmt: skip


def psmnist(seed: int, size: Size) -> Training:
    H, dropouts = size.units(256), Dropouts(recurrent=0.2, weight=0.2)

    def body() -> nn.Module:
        inputs = (1, H)
        return ResidualStack([Recurrent("attn_rnn", D, H, batch_first=True, dropouts=dropouts) for D in inputs], 0.2)

    return classify_pixels(
        "psmnist", "attn_rnn", seed, size, body, H, epochs=100, lr=3e-3, pixel_dropout=0.1, model="attn_rnn", hidden=H,
        layers=2, residuals=True, recurrent_dropout=0.2, weight_dropout=0.2,
    )  # fmt: skip


def psmnist_scan(seed: int, size: Size) -> Training:
    d = size.units(256)
    return classify_pixels(
        "psmnist", "min_gru blocks", seed, size, lambda: ScanBlocks(d, 4, 0.2), d, epochs=60, lr=2e-3, mean=True,
        pixel_dropout=0.1, weight_decay=0.05, model="min_gru", hidden=d, layers=4, residuals=True,
    )  # fmt: skip


# Synthetic problems

SYMBOLS, KINDS = 10, 8  # copied symbols of so many kinds; ids 0 .. 7, then the blank and the sign


class StepReader(nn.Module):
    """A recurrent layer in bfloat16 and a head in float32, after every step or after the last."""

    def __init__(self, layer: Recurrent, outputs: int, every: bool, size: Size) -> None:
        super().__init__()
        self.layer, self.every, self.size = layer, every, size
        self.head = nn.Linear(layer.output_size, outputs)

    def forward(self, x: Tensor) -> Tensor:
        with self.size.low():
            y, last = self.layer(x)
        return self.head(y.float() if self.every else last[-1].float())


def copy(seed: int, size: Size, delay: int = 1_000) -> Training:
    """Copy ten symbols after a delay that grows to 1,000 steps; the answers weigh as much as the blanks."""
    delay, B, H = size.length(delay), size.batch(64), size.units(128)
    T, blank, sign = delay + 2 * SYMBOLS, KINDS, KINDS + 1
    longest = torch.ones((), device=size.device)  # the delay so far

    def place(data: Tensor, delays: Tensor) -> Batch:
        x = torch.full((len(data), T), blank, device=size.device)
        x[:, :SYMBOLS] = data
        x.scatter_(1, SYMBOLS - 1 + delays.unsqueeze(1), sign)
        y = torch.full((len(data), T), -1, device=size.device)  # after the answers nothing is asked
        at = torch.arange(T, device=size.device) - (SYMBOLS + delays).unsqueeze(1)
        y = torch.where(at < 0, blank, y)
        y.scatter_(1, (SYMBOLS + delays).unsqueeze(1) + torch.arange(SYMBOLS, device=size.device), data)
        return F.one_hot(x, KINDS + 2).float(), y

    def draw(random: torch.Generator) -> Batch:
        data = torch.randint(KINDS, (B, SYMBOLS), generator=random, device=size.device)
        share = torch.rand(B, generator=random, device=size.device)
        share[: B // 2] = 1.0  # half of the rows have the longest delay
        return place(data, (share * longest).long().clamp(1, delay))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        x, y = batch
        losses = F.cross_entropy(model(x).flatten(0, 1), y.clamp(min=0).flatten(), reduction="none").view(y.shape)
        answers, blanks = ((y >= 0) & (y < blank)).float(), (y == blank).float()
        return (losses * answers).sum() / answers.sum() + (losses * blanks).sum() / blanks.sum()

    def grow(share: float) -> None:
        longest.fill_(float(delay) ** min(1.0, share / 0.4))

    def score(model: nn.Module, split: str) -> dict[str, float]:
        n, total, right = size.rows(1_000 if split == "valid" else 10_000), 0.0, 0
        random = torch.Generator(size.device).manual_seed(1 if split == "valid" else 2)
        for rows in torch.randint(KINDS, (n, SYMBOLS), generator=random, device=size.device).split(500):
            x, y = place(rows, torch.full((len(rows),), delay, device=size.device))
            scores = model(x)
            total += float(F.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="sum"))
            right += int((scores[:, -SYMBOLS:].argmax(-1) == rows).sum())
        return {"loss": total / (n * T), "accuracy": right / (n * SYMBOLS), "longest": float(longest)}

    def build() -> nn.Module:
        init = Init(chrono=3 * delay // 2)
        return StepReader(Recurrent("attn_rnn", KINDS + 2, H, batch_first=True, init=init), KINDS + 1, True, size)

    settings = {"model": "attn_rnn", "hidden": H, "batch": B, "delay": delay, "chrono": 3 * delay // 2}
    return Training(
        "copy", "attn_rnn", seed, build, draw, loss, score, size.steps(30_000), 3e-3,
        settings | {"loss": "mean of the answers + mean of the blanks", "precision": "bf16"},
        ema=0.999, betas=(0.9, 0.99), grow=grow, score_every=0.05,
    )  # fmt: skip


def adding(seed: int, size: Size, length: int = 10_000) -> Training:
    """Add the two marked numbers of 10,000."""
    T, B, H = size.length(length), size.batch(64), size.units(128)

    def make(n: int, random: torch.Generator) -> Batch:
        v = torch.rand(n, T, generator=random, device=size.device)
        first = torch.randint(T, (n, 1), generator=random, device=size.device)
        further = torch.randint(1, T, (n, 1), generator=random, device=size.device)
        m = torch.zeros_like(v).scatter_(1, torch.cat([first, (first + further) % T], 1), 1.0)
        return torch.stack([v, m], -1), (m * v).sum(1, keepdim=True)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    def score(model: nn.Module, split: str) -> dict[str, float]:
        n, total, share = size.rows(500 if split == "valid" else 5_000), 0.0, size.rows(250)
        random = torch.Generator(size.device).manual_seed(1 if split == "valid" else 2)
        for _ in range(n // share):
            x, y = make(share, random)
            total += float(F.mse_loss(model(x), y, reduction="sum"))
        return {"mse": total / n}

    def build() -> nn.Module:
        return StepReader(Recurrent("attn_rnn", 2, H, batch_first=True, init=Init(chrono=T)), 1, False, size)

    settings = {"model": "attn_rnn", "hidden": H, "batch": B, "length": T, "chrono": T, "precision": "bf16"}
    return Training(
        "adding", "attn_rnn", seed, build, lambda random: make(B, random), loss, score, size.steps(3_000), 5e-3,
        settings, ema=0.99,
    )  # fmt: skip


# Reviews

WORDS, BIGRAMS = 30_000, 1 << 18


@cache
def read_reviews(words: int, every: int, device: torch.device) -> dict[str, LabelledRows]:
    """Return whole reviews of up to `words` words; training reviews that are also in the test set are dropped."""
    (texts, y), test = text.imdb("train", words, every), text.imdb("test", words, every)
    tested = {" ".join(one) for one in test[0]}
    places = [i for i, one in enumerate(texts) if " ".join(one) not in tested]
    train = [texts[i] for i in places], [y[i] for i in places]
    ids = text.vocabulary(train[0], WORDS)
    rows = text.encode(train, ids, words).shuffle().to(device)
    held = min(2_500, len(rows) // 10)
    valid, tested_rows = rows.part(0, held), text.encode(test, ids, words).shuffle().to(device)
    return {"train": rows.part(held, len(rows)), "valid": valid, "test": tested_rows}


def hash_pairs(x: Tensor, buckets: int) -> Tensor:
    """Return a bucket for each word (B, T) and the word before it; padding stays 0."""
    before = F.pad(x[:, :-1], (1, 0))
    pairs = (x * 1_000_003 + before * 7_919) % (buckets - 1) + 1
    return torch.where(x > 0, pairs, 0)


class ReviewClassifier(nn.Module):
    """Words and hashed pairs of words, a recurrent layer, its maximum and mean, and the mean of the pairs."""

    def __init__(self, layer: Recurrent, width: int, pairs: int, size: Size, dropout: float, words: float) -> None:
        super().__init__()
        self.size, self.word_dropout, self.buckets = size, words, 1_024 if size.tiny else BIGRAMS
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.pairs = nn.Embedding(self.buckets, pairs, padding_idx=0)
        with torch.no_grad():
            self.words.weight *= 0.1
            self.pairs.weight *= 0.01
        self.layer, self.readout = layer, Readout("max_mean", layer.output_size, layer.bidirectional)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.readout.output_size + width + pairs, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        pairs = hash_pairs(x, self.buckets)
        if self.training:
            kept = torch.rand(x.shape, device=x.device) >= self.word_dropout
            x = torch.where(kept | (x == 0), x, text.OTHER)
            pairs = torch.where(kept, pairs, 0)
        w, p = self.words(x), self.pairs(pairs)
        with self.size.low():
            y, _ = self.layer(self.dropout(torch.cat([w, p], -1)), lengths=lengths)
        n = lengths.unsqueeze(1)
        parts = [self.readout(y.float(), lengths), w.sum(1) / n, p.sum(1) / n]
        return self.head(self.dropout(torch.cat(parts, -1)))


def classify_reviews(cell: str, seed: int, size: Size) -> Training:
    """Return a training on IMDB reviews with this cell, in both directions."""
    length = 60 if size.tiny else 800
    data, B, H = read_reviews(length, 200 if size.tiny else 1, size.device), size.batch(64), size.units(128)
    train, width, pairs = data["train"], size.units(128), size.units(64)

    def build() -> nn.Module:
        layer = Recurrent(cell, width + pairs, H, batch_first=True, bidirectional=True, init=Init("orthogonal"))
        return ReviewClassifier(layer, width, pairs, size, 0.5, 0.2)

    def draw(random: torch.Generator) -> Batch:
        rows = train.rows(torch.randint(len(train), (B,), generator=random, device=size.device))
        return rows.x, rows.lengths, rows.y

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[1]), batch[2], label_smoothing=0.05)

    def score(model: nn.Module, split: str) -> dict[str, float]:
        rows, right = data[split].part(0, size.rows(25_000)), 0
        for x, n, y in zip(rows.x.split(500), rows.lengths.split(500), rows.y.split(500), strict=True):
            right += int((model(x, n).argmax(-1) == y).sum())
        return {"accuracy": right / len(rows)}

    settings = {"model": f"bi_{cell}", "hidden": H, "batch": B, "words": length, "vocabulary": WORDS, "epochs": 6}
    settings |= {"hashed_pairs": BIGRAMS, "readout": "max_mean", "dropout": 0.5, "word_dropout": 0.2}
    settings |= {"label_smoothing": 0.05, "precision": "bf16"}
    return Training(
        "imdb", f"bi_{cell}", seed, build, draw, loss, score, size.steps(6 * 22_500 // 64), 3e-3, settings,
        weight_decay=0.01, ema=0.995, score_every=1 / 6,
    )  # fmt: skip


def imdb(seed: int, size: Size) -> Training:
    return classify_reviews("gru", seed, size)


def imdb_attn(seed: int, size: Size) -> Training:
    return classify_reviews("attn_rnn", seed, size)


RECIPES: dict[str, Recipe] = {
    "smnist": smnist,
    "smnist_wide": smnist_wide,
    "psmnist": psmnist,
    "psmnist_scan": psmnist_scan,
    "copy": copy,
    "adding": adding,
    "imdb": imdb,
    "imdb_attn": imdb_attn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--goals", nargs="+", required=True, metavar="NAME[:SEED,SEED]", help=", ".join(RECIPES))
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which all trainings have ended")
    parser.add_argument("--out", type=Path, required=True, help="the ledger, a file of JSON lines")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="check that everything runs")
    args = parser.parse_args()
    size = Size(torch.device(args.device), args.tiny)
    torch.set_float32_matmul_precision("high")
    trainings = []
    for name, _, seeds in (goal.partition(":") for goal in args.goals):
        trainings += [RECIPES[name](int(seed), size) for seed in (seeds or "0").split(",")]
    train_all(trainings, size.device, args.limit, args.out)


if __name__ == "__main__":
    main()
