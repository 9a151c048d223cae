"""German into English on Multi30k, with and without attention: BLEU of four models, and what they looked at.

    python benchmarks/quality/translate.py --data shared/data/multi30k --out benchmarks/results

Words of the authors' lower-cased, tokenised files that occur twice or more; 29,000 sentence pairs; a beam
of 5. Needs sacrebleu (on PYTHONPATH, or installed). BLEU is of the text put together again against the raw
references, lower-cased; the JSON also has that of the tokens as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import alignments
import multi30k
import torch
from multi30k import Pairs, Vocabulary

import seqloom
from seqloom import doctor
from seqloom.attention.score import AdditiveScore, DotScore
from seqloom.layers.transformer import Transformer
from seqloom.layers.transformer_block import Block
from seqloom.models.decode import RecurrentDecoder
from seqloom.models.decode_transformer import TransformerDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.likelihood import perplexity
from seqloom.models.search import Beam
from seqloom.models.translate import Translate

MODELS = ("none", "additive", "dot", "transformer")
AIMS = {"additive": 27.0, "transformer": 35.0, "attention over none": 7.0}
SHOWN = 4  # sentences whose alignments are drawn


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
        encoder = Encoder(Embed(german, s.dim, p), build_layer())
        layer = build_layer(causal=True, memory_size=s.dim)
        return Translate(encoder, TransformerDecoder(Embed(english, s.dim, p), layer, tied=True))
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
    steps = s.epochs * len(data.buckets(s.batch, torch.Generator()))
    warm = max(1, round(s.warm_up * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser,
        lambda i: min((i + 1) / warm, 0.5 * (1 + math.cos(math.pi * max(0, i - warm) / max(1, steps - warm)))),
    )
    losses, seconds, perplexities = [], [], []
    for epoch in range(s.epochs):
        began, total = time.perf_counter(), torch.zeros((), device=device)
        model.train()
        batches = data.buckets(s.batch, order)
        for rows in batches:
            source, target, n, m = data.batch(rows)
            with torch.autocast(device, torch.bfloat16, enabled=s.precision == "bf16"):
                loss = model.loss(source, target, n, m, smoothing=s.smoothing)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), s.clip)
            optimiser.step()
            schedule.step()
            total += loss.detach()
        losses.append(float(total) / len(batches))
        seconds.append(time.perf_counter() - began)
        perplexities.append(measure(model, validation))
        left.epoch(f"epoch {epoch + 1}: loss {losses[-1]:.3f}, validation perplexity {perplexities[-1]:.2f}")
    return {"loss": losses, "validation_perplexity": perplexities, "seconds": seconds}


@torch.no_grad()
def measure(model: Translate, data: Pairs) -> float:
    model.eval()
    total, count = 0.0, 0
    for rows in data.buckets(256):
        source, target, n, m = data.batch(rows)
        tokens = sum(data.lengths[r][1] - 1 for r in rows)
        total += float(model.loss(source, target, n, m)) * tokens
        count += tokens
    return perplexity(total / count)


def translate(model: Translate, data: Pairs, en: Vocabulary, s: Settings) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in data.lengths]
    beam = Beam(s.beam, s.length_penalty, s.max_length)
    for rows in data.buckets(128):
        source, _, n, _ = data.batch(rows)
        for row, (best,) in zip(rows, model.translate(source, n, beam).lists(), strict=True):
            found[row] = [en.words[i] for i in best]
    return found


@torch.no_grad()
def looks(model: Translate, data: Pairs, de: Vocabulary, en: Vocabulary, s: Settings) -> list[dict[str, Any]]:
    """Where the model looked for each word it wrote, in a few sentences of ten words or so."""
    rows = sorted(range(len(data.lengths)), key=lambda r: (abs(data.lengths[r][0] - 10), r))[:SHOWN]
    source, _, n, _ = data.batch(rows)
    found = model.translate(source, n, Beam(s.beam, s.length_penalty, s.max_length))
    weights = model.align(source, found.tokens[:, 0], n)
    if weights is None:
        return []
    shown = []
    for i, r in enumerate(rows):
        S, T = data.lengths[r][0], int(found.lengths[i, 0])
        words = [en.words[t] for t in found.lists()[i][0]]
        grid = [[round(w, 4) for w in line] for line in weights[i, : T + 1, :S].tolist()]
        shown.append(
            {
                "source": [de.words[t] for t in source[i, :S].tolist()],
                "target": [*words, multi30k.SPECIAL[2]],
                "weights": grid,
            }
        )
    return shown


class TimeLeft:
    """Progress lines on stderr."""

    def __init__(self, epochs: int) -> None:
        self.began, self.epochs, self.done, self.name = time.perf_counter(), epochs, 0, ""

    def epoch(self, news: str) -> None:
        self.done += 1
        gone = time.perf_counter() - self.began
        self.say(f"{news}; about {gone / self.done * (self.epochs - self.done):.0f} s left")

    def say(self, news: str) -> None:
        print(f"{time.perf_counter() - self.began:6.0f} s  {self.name:12} {news}", file=sys.stderr, flush=True)


def judged(models: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What was aimed at, and what was reached."""
    bleu = {name: float(str(result["bleu"])) for name, result in models.items()}
    reached = dict(bleu)
    attention = [bleu[name] for name in ("additive", "dot") if name in bleu]
    if attention and "none" in bleu:
        reached["attention over none"] = round(min(attention) - bleu["none"], 2)
    return {n: {"aim": aim, "reached": reached[n], "ok": reached[n] >= aim} for n, aim in AIMS.items() if n in reached}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--data", type=Path, required=True, help="the folder multi30k, with tok/ and raw/")
    flags.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    flags.add_argument("--models", nargs="+", default=MODELS, choices=MODELS, metavar="MODEL", help=" ".join(MODELS))
    flags.add_argument("--epochs", type=int)
    flags.add_argument("--seed", type=int)
    flags.add_argument("--precision", choices=("fp32", "bf16"))
    flags.add_argument("--quick", action="store_true", help="tiny models, few sentences: does everything run?")
    given = flags.parse_args()
    import sacrebleu  # now, rather than after the training

    asked = {k: v for k in ("epochs", "seed", "precision") if (v := getattr(given, k)) is not None}
    s = Settings(**((QUICK if given.quick else {}) | asked))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    german, english = (multi30k.sentences(given.data, "train", language, s.pairs) for language in ("de", "en"))
    de, en = Vocabulary(german, s.min_frequency), Vocabulary(english, s.min_frequency)
    data = multi30k.pairs(german, english, de, en, device)
    validation = multi30k.pairs(
        *(multi30k.sentences(given.data, "val", x, s.tests) for x in ("de", "en")), de, en, device
    )
    wanted = multi30k.sentences(given.data, "test_2016_flickr", "en", s.tests)
    test = multi30k.pairs(multi30k.sentences(given.data, "test_2016_flickr", "de", s.tests), wanted, de, en, device)
    raw = multi30k.lines(given.data / "raw" / "test_2016_flickr.en.gz")[: s.tests]

    left = TimeLeft(s.epochs * len(given.models))
    results: dict[str, dict[str, Any]] = {}
    shown: dict[str, list[dict[str, Any]]] = {}
    for name in given.models:
        left.name = name
        torch.manual_seed(s.seed)
        model = build(name, len(de), len(en), s).to(device)
        lr = s.transformer_lr if name == "transformer" else s.lr
        results[name] = {"parameters": sum(p.numel() for p in model.parameters())}
        results[name] |= {"training": train(model, data, validation, s, lr, left)}
        began = time.perf_counter()
        found = translate(model.eval(), test, en, s)
        results[name] |= {"decoding_seconds": round(time.perf_counter() - began, 2)} | multi30k.score(
            found, wanted, raw
        )
        results[name] |= {"examples": [" ".join(words) for words in found[:5]]}
        shown |= {name: grids} if (grids := looks(model, test, de, en, s)) else {}
        left.say(f"BLEU {results[name]['bleu']} ({results[name]['decoding_seconds']} s for {len(found)} sentences)")

    kind = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    now = datetime.now(UTC)
    document = {
        "what": "Multi30k de-en, test_2016_flickr",
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "date": now.isoformat(timespec="seconds"),
        "hardware": doctor.hardware() | {"device": kind},
        "versions": doctor.versions() | {"sacrebleu": sacrebleu.__version__},
        "seconds": round(time.perf_counter() - left.began, 1),
        "settings": asdict(s) | {"vocabulary": {"de": len(de), "en": len(en)}},
        "aims": judged(results),
        "models": results,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    stem = f"{now:%Y-%m-%d}-{kind.split()[-1].lower()}-translate{'-quick' * given.quick}"
    for name, content in (
        (f"{stem}.json", json.dumps(document, indent=1, ensure_ascii=False) + "\n"),
        (f"{stem}-alignments.json", json.dumps(shown, ensure_ascii=False) + "\n"),
        (f"{stem}-alignments.svg", alignments.picture(shown)),
    ):
        (given.out / name).write_text(content, encoding="utf-8")
        print(given.out / name)


if __name__ == "__main__":
    main()
