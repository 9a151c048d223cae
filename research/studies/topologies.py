"""The four topologies of recurrent networks, each on real data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.data import target_texts
from research.studies.data.text import INTENTS, intents
from research.studies.support.conditions import TEST, Condition, TrialSettings
from research.studies.support.contenders import layer, starts
from research.studies.support.corpora import Corpora, Corpus
from research.studies.support.epochs import fast
from research.studies.support.metric import ACCURACY, ERROR, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.trials import Tensors
from seqloom.lab.report.page import PageBlock, Words
from seqloom.layers.registry import make
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.classify import Classify
from seqloom.models.decoding import likelihood
from seqloom.models.decoding.recurrent import RecurrentDecoder
from seqloom.models.decoding.sampling import Sampling
from seqloom.models.decoding.transformer import TransformerDecoder
from seqloom.models.embed import Embed
from seqloom.models.encode import Encoder
from seqloom.models.generate import Generate
from seqloom.models.translate import Translate

HEADS = 4
POEMS, INTENT, SURNAMES, RESTAURANTS, SENTENCES = (
    "N to N: the next sign of a poem",
    "N to 1: intent of a request",
    "1 to N: a surname for a language",
    "1 to N: a sentence for attributes",
    "N to M: English into Chinese",
)
FORMS = {POEMS: "poems", INTENT: "intents", SURNAMES: "surnames", RESTAURANTS: "restaurants", SENTENCES: "sentences"}


def at(name: str, steps: int, budget: int, vocabulary: int, T: int, every: int = 1) -> Condition:
    task = {"vocabulary": vocabulary, "T": T, "every": every, "budget": budget, "width": 64}
    return Condition(name, steps, {"form": FORMS[name]} | task)


class Topologies(Corpora[TrialSettings], name="topologies"):
    """Accuracy of N-to-N, N-to-1, 1-to-N and N-to-M models on poems, requests, names and translation."""

    metrics = (TrialMetric("accuracy", ACCURACY), TrialMetric("bits", ERROR))
    full = TrialSettings(
        (
            at(INTENT, 400, 600_000, 8_000, 30),
            at(SURNAMES, 800, 80_000, 96, 22),
            at(POEMS, 1_000, 700_000, 4_000, 64, every=2),
            at(RESTAURANTS, 1_000, 700_000, 3_000, 48),
            at(SENTENCES, 1_000, 1_000_000, 5_000, 24),
        ),
        ("attn_rnn", "gru", "lstm", "rnn", "transformer"),
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default",),
        valid=700,
        test=700,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        widen_by=0.002,
    )
    quick = TrialSettings(
        (at(INTENT, 40, 30_000, 300, 12, every=10), at(SURNAMES, 60, 12_000, 60, 12)),
        ("attn_rnn", "gru", "transformer"),
        seeds=2,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=200,
        test=200,
    )

    def corpus(self, condition: Condition) -> Corpus:
        task, s = condition.task, self.settings
        size, T, every = task["vocabulary"], task["T"], task["every"]
        if task["form"] == "intents":
            return Corpus(intents(size, T, every, s.valid, s.test))
        if task["form"] == "restaurants":
            parts, words = target_texts.restaurants(size, T, every)
            most = {"valid": s.valid, TEST: s.test}
            return Corpus({k: tuple(t[: most.get(k, len(t))] for t in part) for k, part in parts.items()}, (words,))
        if task["form"] == "sentences":
            rows, english, chinese = target_texts.sentences(size, T, every)
            return Corpus.split(rows, s.valid, s.test, (english, chinese))
        if task["form"] == "surnames":
            rows, words, languages = target_texts.surnames(size, T)
            return Corpus.split(rows, s.valid, s.test, (words, languages))
        rows, words = target_texts.poems(size, T, every)
        return Corpus.split(rows, s.valid, s.test, (words,))

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        width, size, T = task["width"], task["vocabulary"], task["T"]
        if task["form"] == "sentences":
            return translate(model, width, size, hidden, start, T)
        beside = {"surnames": target_texts.LANGUAGES, "restaurants": target_texts.ATTRIBUTES}.get(task["form"], 0)
        embed = Embed(size, width, scaled=True)
        inner = _layer(model, width + beside, hidden, start, T)
        if task["form"] == "intents":
            return Classify(inner, len(INTENTS), embed=embed)
        return Generate(embed, inner, condition=beside)

    def multiple(self, model: str) -> int:
        return (
            2 * HEADS if model == "transformer" else 2 * super().multiple(model)
        )  # a bidirectional encoder uses half in each direction

    def grid(self, model: str) -> list[tuple[float, str]]:
        first = "default" if model == "transformer" else starts(model, self.settings.starts)[0]
        return [(lr, first) for lr in self.settings.lrs]

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        return likelihood.loss(*answers(model, batch))

    def tally(self, model: nn.Module, batch: Tensors) -> dict[str, tuple[Tensor, Tensor]]:
        logits, target = answers(model, batch)
        asked = (target != likelihood.IGNORED).sum()
        nats = F.cross_entropy(logits.flatten(0, -2), target.flatten(), reduction="sum")
        return {"accuracy": ((logits.argmax(-1) == target).sum(), asked), "bits": (nats / math.log(2), asked)}

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        scores = super().score(model, condition, split, device)
        key = self._texts_key(condition)  # the first model is scored first
        if split == TEST and condition.task["form"] != "intents" and self.ledger.get(key) is None:
            with fast(model, device):
                self.ledger.add(key, {"texts": _generate_texts(model, self.read(condition))})
        return scores

    def count_answers(self, condition: Condition) -> int | None:
        """Return the test rows: the tokens of a row are more, but counting them takes the data set."""
        return self.settings.test

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        blocks = list(super().blocks(rows))
        for c in self.settings.conditions:
            stored = self.ledger.get(self._texts_key(c))
            blocks += [Words(f"{c.name}: texts by {self.models(c)[0]}", stored["texts"])] if stored else []
        return blocks

    def _texts_key(self, condition: Condition) -> dict[str, Any]:
        return {
            "study": self.name,
            "written": condition.name,
            "steps": self.steps(condition),
            "by": self.models(condition)[0],
        }

    def caption(self) -> str:
        return (
            f"{super().caption()}\naccuracy: of the class, or of the next token given the true tokens before it; bits: "
            "cross-entropy per class or token.\n"
            "N to M: a bidirectional encoder and a decoder with dot attention, or a Transformer."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        best = []
        for c in self.settings.conditions:
            mine = [(g.summary("accuracy").mean or 0.0, g.model) for g in groups(rows) if g.condition == c.name]
            best += [f"{c.name}: {max(mine)[1]} {max(mine)[0]:.1%}"] if mine else []
        return f"Highest accuracy: {'; '.join(best)}. {super().verdict(rows)}"


def answers(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    """Return scores (.., V) in float32 and the targets."""
    with fast(model, batch[0].device):
        if isinstance(model, Classify):
            x, target, lengths = batch
            return model(x, lengths).float(), target
        if isinstance(model, Translate):
            source, written, n, m = batch
            read, target = likelihood.shift_targets(written, m)
            return model(source, read, n)[0].float(), target
        ids, lengths, *condition = batch
        read, target = likelihood.shift_targets(ids, lengths)
        return model(read, condition=condition[0] if condition else None)[0].float(), target


def _layer(model: str, inputs: int, hidden: int, start: str, T: int) -> nn.Module:
    if model == "transformer":
        return make("transformer", inputs, hidden, num_layers=2, heads=HEADS)
    return layer(model, inputs, hidden, start, T)


def translate(model: str, width: int, size: int, hidden: int, start: str, T: int) -> Translate:
    """Build a translation model; for a Transformer `hidden` is the width of all parts, embeddings included."""
    if model == "transformer":
        encoder = Encoder(Embed(size, hidden, scaled=True), Transformer(hidden, HEADS, position="sinusoidal"))
        inner = Transformer(hidden, HEADS, causal=True, memory_size=hidden, position="sinusoidal")
        return Translate(encoder, TransformerDecoder(Embed(size, hidden, scaled=True), inner))
    both = layer(model, width, hidden // 2, start, T, bidirectional=True)
    embed = Embed(size, width, scaled=True)
    decoder = RecurrentDecoder(embed, layer(model, width, hidden, start, T), both.output_size, attention="dot")
    return Translate(Encoder(Embed(size, width, scaled=True), both), decoder)


def _generate_texts(model: nn.Module, corpus: Corpus, count: int = 3) -> list[str]:
    """Generate a few texts, each preceded by its input."""
    sample = tuple(t[:count] for t in corpus.parts[TEST])
    if isinstance(model, Translate):
        texts = model.greedy(sample[0], sample[2], max_length=sample[1].shape[1])
        read = [_text(row, corpus.words[0], " ") for row in sample[0].tolist()]
        return [f"{a} -> {_text(b, corpus.words[1], '')}" for a, b in zip(read, texts.lists(), strict=True)]
    assert isinstance(model, Generate)
    begin = sample[0][:, :1] if len(sample) > 2 else sample[0][:, :6]  # a poem continues from its first characters
    condition = sample[2] if len(sample) > 2 else None
    sampling = Sampling(temperature=0.7, seed=0)
    texts = model.sample(
        begin, sampling, condition=condition, stop=target_texts.MARKS.stop, max_length=sample[0].shape[1]
    )
    between = " " if model.condition == target_texts.ATTRIBUTES else ""
    first = [_text(row, corpus.words[0], between) for row in begin.tolist()]
    if model.condition == target_texts.LANGUAGES:
        first = [f"{corpus.words[1][i]}: " for i in sample[2].argmax(1).tolist()]
    return [a + _text(b, corpus.words[0], between) for a, b in zip(first, texts.lists(), strict=True)]


def _text(ids: list[int], words: list[str], between: str) -> str:
    """Join the words of these ids, without marks, and without ids beyond the words of a small corpus."""
    return between.join(words[i] for i in ids if target_texts.UNKNOWN <= i < len(words))
