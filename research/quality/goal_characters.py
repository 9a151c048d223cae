"""The goal on characters: bits per character of tiny Shakespeare."""

from __future__ import annotations

import gzip
import math
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.quality.goal_recipe import Batch, Training
from research.quality.goal_size import Size
from research.studies.data.place import find
from seqloom.layers.dropouts import Dropouts
from seqloom.layers.recurrent.layer import Recurrent

PIECE = 200  # characters per step of training
STREAMS = 16  # in which the test text is read at once
TEST_SHARE = 0.1  # of the text, at its end


@cache
def read_characters(device: torch.device) -> tuple[Tensor, Tensor, int]:
    """Return the first 90 % and the last 10 % of the text as ids, and the number of characters."""
    (file,) = find("tiny_shakespeare", "input.txt.gz")
    text = gzip.decompress(file.read_bytes()).decode()
    alphabet = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([alphabet[c] for c in text], device=device)
    cut = round(len(ids) * (1 - TEST_SHARE))
    return ids[:cut], ids[cut:], len(alphabet)


class SharedDropout(nn.Module):
    """Dropout of (B, T, D) with one mask for all steps of a row (Gal & Ghahramani 2016, arXiv 1512.05287)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.rate:
            return x
        return x * F.dropout(torch.ones_like(x[:, :1]), self.rate)


class CharacterModel(nn.Module):
    """An embedding, stacked LSTMs with dropout on their weights and between them, and a linear head."""

    def __init__(self, symbols: int, hidden: int, layers: int, dropout: float, weight_dropout: float, size: Size):
        super().__init__()
        self.size, self.embed, self.head = size, nn.Embedding(symbols, hidden), nn.Linear(hidden, symbols)
        dropouts = Dropouts(weight=weight_dropout)
        self.layers = nn.ModuleList(
            Recurrent("lstm", hidden, hidden, batch_first=True, dropouts=dropouts, forget_bias=1.0)
            for _ in range(layers)
        )
        self.first, self.dropout = SharedDropout(0.5 * dropout), SharedDropout(dropout)

    def forward(self, x: Tensor, states: list[tuple[Tensor, Tensor] | None]) -> tuple[Tensor, list[Tensor]]:
        """Return logits (B, T, symbols) and the states after the last step."""
        y, after = self.first(self.embed(x)), []
        for layer, state in zip(self.layers, states, strict=True):
            with self.size.low():
                y, last = layer(y, state)
            y = self.dropout(y)
            after.append(last)
        return self.head(y.float()), after


class Streams:
    """Read a text in B places at once, piece by piece, with the state carried from piece to piece on the device."""

    def __init__(self, text: Tensor, rows: int, piece: int, shape: tuple[int, int]) -> None:
        self.lines = text[: len(text) // rows * rows].view(rows, -1)
        self.at = torch.zeros((), dtype=torch.long, device=text.device)
        self.piece, layers, hidden = piece, *shape
        self.states = [tuple(torch.zeros(1, rows, hidden, device=text.device) for _ in "hc") for _ in range(layers)]

    def draw(self, random: torch.Generator) -> Batch:
        """Return the next characters (B, piece + 1); after the end of the lines, begin again at a random place."""
        begin = torch.randint(self.piece, (), generator=random, device=self.at.device)
        ended = self.at + self.piece + 1 > self.lines.shape[1]
        self.at.copy_(torch.where(ended, begin, self.at))
        for state in self.states:
            for tensor in state:
                tensor.mul_(~ended)
        places = self.at + torch.arange(self.piece + 1, device=self.at.device)
        self.at += self.piece
        return (self.lines.index_select(1, places),)

    def keep(self, states: list[tuple[Tensor, Tensor]]) -> None:
        for mine, new in zip(self.states, states, strict=True):
            for old, tensor in zip(mine, new, strict=True):
                old.copy_(tensor.detach())


def shakespeare(seed: int, size: Size, dropout: float = 0.3, weight_dropout: float = 0.4) -> Training:
    """Train 3 x 512 LSTMs on the first 90 % of the text; all settings were fixed beforehand."""
    train, test, symbols = read_characters(size.device)
    layers, H, B, piece = 3, size.units(512), size.batch(32), size.length(PIECE)
    streams = Streams(train[:4_000] if size.tiny else train, B, piece, (layers, H))

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        (ids,) = batch
        logits, states = model(ids[:, :-1], [tuple(s.clone() for s in state) for state in streams.states])
        streams.keep(states)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def score(model: nn.Module, split: str) -> dict[str, float]:
        if split == "valid":
            return {}  # the recipe trains on all of the 90 %
        text = test[:2_000] if size.tiny else test
        lines = text[: (len(text) - 1) // STREAMS * STREAMS + 1]
        width, total = len(lines) // STREAMS, 0.0
        rows = torch.stack([lines[i * width : (i + 1) * width + 1] for i in range(STREAMS)])
        # every line begins with the state after the characters before it
        whole = torch.cat([train[-piece:], lines])
        before = torch.stack([whole[i * width : i * width + piece] for i in range(STREAMS)])
        _, states = model(before, [None] * layers)
        for begin in range(0, width, 1_000):
            part = rows[:, begin : min(begin + 1_000, width) + 1]
            logits, states = model(part[:, :-1], states)
            total += float(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="sum"))
        return {"bits": total / (width * STREAMS) / math.log(2)}

    settings = {"model": "lstm", "hidden": H, "layers": layers, "batch": B, "piece": piece, "epochs": 40}
    settings |= {"dropout": dropout, "weight_dropout": weight_dropout, "precision": "bf16"}
    return Training(
        "shakespeare", f"lstm, dropout {dropout}", seed,
        lambda: CharacterModel(symbols, H, layers, dropout, weight_dropout, size),
        streams.draw, loss, score, size.steps(40 * len(train) // (32 * PIECE)), 2e-3, settings,
        weight_decay=0.01, ema=0.999,
    )  # fmt: skip
