"""The goal on translation: Multi30k, German to English."""

from __future__ import annotations

from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from research.quality import multi30k
from research.quality.goal_recipe import Batch, Training, draw_by_length
from research.quality.goal_size import Size
from research.quality.multi30k import Pairs, Vocabulary
from research.quality.translate_training import Settings, build, measure_perplexity
from research.studies.data.place import find
from seqloom.models.decoding.beam import Beam
from seqloom.models.translate import Translate

LONGEST = 40  # words of a training sentence, on both sides
LENGTHS = (12, 15, 18, 24, LONGEST)  # words of the sentences of one batch
PENALTIES = (0.6, 1.0, 1.4)  # length penalties that are tried on validation sentences
SPLITS = {"valid": "val", "test": "test_2016_flickr"}


@cache
def read_pairs(device: torch.device, tiny: bool) -> tuple[Vocabulary, Vocabulary, dict[str, Pairs]]:
    (file,) = find("multi30k", "tok/train.lc.norm.tok.de.gz")
    folder, limit = file.parents[1], 40 if tiny else None
    german, english = (multi30k.sentences(folder, "train", language, limit) for language in ("de", "en"))
    de, en = Vocabulary(german, 2), Vocabulary(english, 2)
    kept = [(g, e) for g, e in zip(german, english, strict=True) if max(len(g), len(e) + 1) < LONGEST]
    data = {"train": multi30k.pairs([g for g, _ in kept], [e for _, e in kept], de, en, str(device))}
    for split, name in SPLITS.items():
        both = (multi30k.sentences(folder, name, language, limit) for language in ("de", "en"))
        data[split] = multi30k.pairs(*both, de, en, str(device))
    return de, en, data


def translate_all(model: Translate, data: Pairs, en: Vocabulary, penalty: float) -> list[list[str]]:
    """Return the words of every translation."""
    translations: list[list[str]] = [[] for _ in data.lengths]
    for rows in data.buckets(512):
        source, _, n, _ = data.batch(rows)
        for row, (best,) in zip(rows, model.translate(source, n, Beam(5, penalty, 60)).lists(), strict=True):
            translations[row] = [en.words[i] for i in best]
    return translations


def rate_translations(translations: list[list[str]], split: str, limit: int | None = None) -> dict[str, float]:
    """Return BLEU of the joined text against the raw references, lower-cased, and of the tokens."""
    (raw,) = find("multi30k", f"raw/{SPLITS[split]}.en.gz")
    wanted = multi30k.sentences(raw.parents[1], SPLITS[split], "en", limit)
    scores = multi30k.score(translations, wanted, multi30k.lines(raw)[:limit])
    return {"bleu": scores["bleu"], "bleu_of_tokens": scores["bleu_of_tokens"]}


def rate_record(record: dict[str, Any]) -> dict[str, Any]:
    """Replace the translations of a record by their BLEU, with the length penalty chosen on validation sentences."""
    both = record["test"].pop("translations")
    rate = {p: rate_translations(valid, "valid")["bleu"] for p, (valid, _) in both.items()}
    best = max(rate, key=lambda p: rate[p])
    scores = rate_translations(both[best][1], "test")
    return record | {"test": scores | {"length_penalty": float(best), "valid_bleu": rate[best]}}


class Encoders(nn.Module):
    """The encoders of several models, which read the same source."""

    def __init__(self, models: list[Translate]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(model.encoder for model in models)

    def forward(self, source: Tensor, lengths: Tensor | None = None) -> list[Any]:
        return [encoder(source, lengths) for encoder in self.encoders]


class Decoders(nn.Module):
    """The decoders of several models as one: the mean of their log-probabilities."""

    def __init__(self, models: list[Translate]) -> None:
        super().__init__()
        self.decoders = nn.ModuleList(model.decoder for model in models)

    def start(self, memories: list[Any]) -> list[Any]:
        return [decoder.start(memory) for decoder, memory in zip(self.decoders, memories, strict=True)]  # type: ignore[operator]

    def step(self, tokens: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        steps = [decoder.step(tokens, state) for decoder, state in zip(self.decoders, states, strict=True)]  # type: ignore[operator]
        return torch.stack([logits.float().log_softmax(-1) for logits, _ in steps]).mean(0), [new for _, new in steps]

    def select(self, states: list[Any], rows: Tensor) -> list[Any]:
        return [decoder.select(state, rows) for decoder, state in zip(self.decoders, states, strict=True)]  # type: ignore[operator]


def multi(seed: int, size: Size) -> Training:
    """Train the additive GRU of `translate.py` for 20 epochs with dropout 0.4 and averaged weights."""
    de, en, data = read_pairs(size.device, size.tiny)
    train, B = data["train"], size.batch(128)
    small = dict(dim=16, hidden=32) if size.tiny else {}
    s = Settings(epochs=20, dropout=0.4, seed=seed, **small)
    lengths = torch.tensor(train.lengths, device=size.device)

    def take(places: Tensor, length: int) -> Batch:
        n, m = lengths.index_select(0, places).unbind(1)
        source, target = train.source[:, :length], train.target[:, : length + 1]
        return source.index_select(0, places), target.index_select(0, places), n, m

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        with size.low():
            return model.loss(*batch, smoothing=s.smoothing)  # type: ignore[operator]

    def score(model: nn.Module, split: str) -> dict[str, float]:
        assert isinstance(model, Translate)
        with size.low():
            return {"perplexity": measure_perplexity(model, data[split])}

    def final(model: nn.Module) -> dict[str, Any]:
        """Choose the length penalty by BLEU on validation sentences, and translate the test set with it."""
        assert isinstance(model, Translate)
        limit = 40 if size.tiny else None
        if find_spec("sacrebleu") is None:  # to be rated elsewhere, by `rate_record`
            both = {p: [translate_all(model, data[split], en, p) for split in SPLITS] for p in PENALTIES}
            return {"translations": both}
        rate = {p: rate_translations(translate_all(model, data["valid"], en, p), "valid", limit) for p in PENALTIES}
        best = max(PENALTIES, key=lambda p: rate[p]["bleu"])
        scores = rate_translations(translate_all(model, data["test"], en, best), "test", limit)
        return scores | {"length_penalty": best, "valid_bleu": rate[best]["bleu"]}

    def together(models: list[Any], split: str) -> dict[str, Any]:
        if split == "valid":
            return {}  # `final` has its BLEU
        return final(Translate(Encoders(models), Decoders(models)).eval())  # type: ignore[arg-type]

    settings = {"model": "gru with additive attention", "hidden": s.hidden, "dim": s.dim, "batch": B, "epochs": 20}
    settings |= {"dropout": s.dropout, "label_smoothing": s.smoothing, "beam": 5, "precision": "bf16"}
    longer = torch.maximum(lengths[:, 0], lengths[:, 1] - 1)
    return Training(
        "multi30k", "additive gru", seed, partial(build, "additive", len(de), len(en), s),
        draw_by_length(longer, LENGTHS, B, take), loss, score,
        size.steps(20 * 29_000 // 128), 1e-3, settings, warm_up=0.1, ema=0.998, betas=(0.9, 0.98), score_every=0.2,
        final=final, together=together,
    )  # fmt: skip
