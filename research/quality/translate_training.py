"""One training of research/quality/translate.py: settings, model and loop."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

import seqloom
from research.quality.multi30k import Pairs
from research.record import Stopwatch
from seqloom.attention.score import AdditiveScore, DotScore
from seqloom.lab.training.recipe import Recipe
from seqloom.lab.training.update import Update
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.decoding.likelihood import perplexity
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.translate import Translate

MODELS = ("none", "additive", "dot", "transformer")


@dataclass(frozen=True)
class Settings:
    epochs: int = 10
    seed: int = 1
    precision: str = "fp32"  # on a GPU with TF32 products; or bf16
    batch: int = 128
    min_frequency: int = 2
    pairs: int | None = None  # of the training pairs, None for all
    tests: int | None = None
    dim: int = 256
    hidden: int = 512
    layers: int = 3  # of the Transformer, on each side
    heads: int = 8
    dropout: float = 0.3
    transformer_dropout: float = 0.15
    lr: float = 1e-3
    transformer_lr: float = 7e-4
    smoothing: float = 0.1
    warm_up: float = 0.1  # of all steps, then a cosine down to 0
    clip: float = 1.0
    beam: int = 5
    length_penalty: float = 0.6
    max_length: int = 60


QUICK = dict(epochs=1, pairs=640, tests=40, dim=32, hidden=64, layers=1, batch=32, max_length=20)


def build(name: str, german: int, english: int, s: Settings) -> Translate:
    if name == "transformer":
        p = s.transformer_dropout
        build_layer = partial(
            Transformer, s.dim, s.heads, s.layers, position="sinusoidal", block=Block(hidden=2 * s.dim, dropout=p)
        )
        encoder = Encoder(Embed(german, s.dim, p, scaled=True), build_layer())
        layer = build_layer(causal=True, memory_size=s.dim)
        return Translate(encoder, TransformerDecoder(Embed(english, s.dim, p, scaled=True), layer, tied=True))
    half = s.hidden // 2
    encoder = Encoder(Embed(german, s.dim, s.dropout), seqloom.GRU(s.dim, half, batch_first=True, bidirectional=True))
    H = encoder.output_size
    score = {"none": None, "additive": AdditiveScore(H, H, weighted=True), "dot": DotScore(H, H)}[name]
    layer = seqloom.GRU(s.dim + (H if score is None else 0), H, batch_first=True)
    decoder = RecurrentDecoder(Embed(english, s.dim, s.dropout), layer, H, attention=score, dropout=s.dropout)
    return Translate(encoder, decoder)


def train(model: Translate, data: Pairs, validation: Pairs, s: Settings, lr: float, left: TimeLeft) -> dict[str, Any]:
    device = data.source.device.type
    order = torch.Generator().manual_seed(s.seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.98), fused=device == "cuda")
    steps, done = s.epochs * len(data.buckets(s.batch, torch.Generator())), 0
    recipe = Recipe(steps, lr, s.warm_up, s.clip)
    update = Update(model.parameters(), optimiser, recipe.clip)
    losses, seconds, perplexities = [], [], []
    for epoch in range(s.epochs):
        start, total = Stopwatch(), torch.zeros((), device=device)
        model.train()
        batches = data.buckets(s.batch, order)
        for rows in batches:
            source, target, n, m = data.batch(rows)
            with torch.autocast(device, torch.bfloat16, enabled=s.precision == "bf16"):
                loss = model.loss(source, target, n, m, smoothing=s.smoothing)
            update.take_step(loss, recipe.rate(done))
            done += 1
            total += loss.detach()
        losses.append(float(total) / len(batches))
        seconds.append(start.seconds)
        perplexities.append(measure_perplexity(model, validation))
        left.epoch(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation perplexity {perplexities[-1]:.2f}")
    return {"loss": losses, "validation_perplexity": perplexities, "seconds": seconds}


@torch.no_grad()
def measure_perplexity(model: Translate, data: Pairs) -> float:
    model.eval()
    total, count = 0.0, 0
    for rows in data.buckets(256):
        source, target, n, m = data.batch(rows)
        tokens = sum(data.lengths[r][1] - 1 for r in rows)
        total += float(model.loss(source, target, n, m)) * tokens
        count += tokens
    return perplexity(total / count)


class TimeLeft:
    """Progress lines on stderr."""

    def __init__(self, epochs: int) -> None:
        self.began, self.epochs, self.done, self.name = Stopwatch(), epochs, 0, ""

    def epoch(self, news: str) -> None:
        self.done += 1
        gone = self.began.seconds
        self.say(f"{news}; about {gone / self.done * (self.epochs - self.done):.0f} s left")

    def say(self, news: str) -> None:
        print(f"{self.began.seconds:6.0f} s  {self.name:12} {news}", file=sys.stderr, flush=True)
