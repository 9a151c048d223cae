"""Sentiment of film reviews (IMDB)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from torch import Tensor, nn

from research.studies.data.examples import LabelledRows
from research.studies.data.text import encode, imdb, vocabulary
from research.studies.support.conditions import TEST, VALID, Condition, ConditionOptions, TrialSettings
from research.studies.support.contenders import FUSED, MULTIPLE, RATES, layer, multiple, rates
from research.studies.support.epochs import Epochs
from research.studies.support.outcome import Trial, groups
from seqloom.lab.report.page import PageBlock, Table
from seqloom.layers.registry import make
from seqloom.layers.transformer.block import Block as Shape
from seqloom.layers.transformer.layer import Transformer
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed

CLASSES, HEADS = 2, 4
GOAL = 0.794  # accuracy of AttnRNN in its third epoch, according to the AttnRNN article
# AttnRNN article, experiment 3: the highest accuracy and the last one.
PRINTED = {
    "rnn": (0.5072, 0.5072),
    "gru": (0.7840, 0.7703),
    "lstm": (0.7744, 0.7744),
    "attn_rnn": (0.8016, 0.8016),
    "transformer": (0.8144, 0.7984),
}
CELLS = ("rnn", "lstm", "gru", "attn_rnn")
READING = (*CELLS, "transformer")  # "mean" averages the word vectors and ignores their order
MEAN, LAST, PADDED = "mean of the words", "last word", "padding read"
EPOCH = 350  # steps of 64 reviews


def at(
    read: str,
    epochs: int,
    words: int = 200,
    task: Mapping[str, float] | None = None,
    **more: Unpack[ConditionOptions],
) -> Condition:
    """Return a condition; `task` replaces fields of the usual task."""
    fields = {"words": words, "read": read, "vocabulary": 20_000, "width": 128, "dropout": 0.3}
    fields |= {"rounds": epochs, "train": 22_377, "every": 1}
    more.setdefault("models", () if read == MEAN else READING)
    return Condition(f"{words} words, {read}", epochs * EPOCH, fields | dict(task or {}), **more)


SMALL = {"vocabulary": 1_000, "width": 16, "rounds": 2, "train": 1_800, "every": 10, "words": 60}
AS_PRINTED = {"dropout": 0.0, "train": 25_000}


class Imdb(Epochs[TrialSettings], name="imdb"):
    """Accuracy of each model on the sentiment of film reviews, and the cost of reading the padding."""

    full = TrialSettings(
        (
            at(MEAN, 4),
            at(LAST, 4, tuned_at="200 words, mean of the words"),
            at(PADDED, 4, tuned_at="200 words, mean of the words"),
            at(MEAN, 4, 400, tuned_at="200 words, mean of the words"),
        ),
        (*READING, "mean"),
        budget=2_626_000,  # 66,000 besides the word embeddings, which all models meet within a few per cent
        valid=2_500,
        test=25_000,
        tuning=0.5,
        widen=True,
    )
    quick = TrialSettings(
        tuple(
            replace(c, steps=60)
            for c in (at(MEAN, 2, 60, task=SMALL), at(PADDED, 2, 60, task=SMALL, models=("rnn", "gru")))
        ),
        ("rnn", "gru", "attn_rnn", "transformer", "mean"),
        seeds=2,
        budget=20_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=600,
        test=600,
    )
    paper = TrialSettings(
        (replace(at(PADDED, 8, task=AS_PRINTED), steps=8 * 390),),
        READING,
        seeds=1,
        hidden=128,
        lrs=(1e-3,),
        starts=("default",),
        valid=1,
        test=25_000,
    )
    paper_quick = TrialSettings(
        (replace(at(PADDED, 2, 60, task=AS_PRINTED | SMALL), steps=40),), ("rnn", "gru", "attn_rnn"), 1, 0, 16, (1e-2,),
        ("default",), 32, valid=1, test=600,
    )  # fmt: skip

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        task, s = condition.task, self.settings
        read = self._read(task["every"], task["vocabulary"])[TEST if split == TEST else "train"]
        cut = LabelledRows(read.x[:, : task["words"]], read.lengths.clamp(max=task["words"]), read.y)
        if split == TEST:
            return cut.part(0, s.test)
        if self.protocol == "paper":
            return cut.part(0, task["train"])
        return cut.part(0, s.valid) if split == VALID else cut.part(s.valid, s.valid + task["train"])

    def _read(self, every: int, size: int) -> dict[str, LabelledRows]:
        """Read both files, shuffled; the fair protocol drops training reviews that are also in the test set."""
        held: dict[tuple[int, int], dict[str, LabelledRows]] = self.__dict__.setdefault("_files", {})
        if (every, size) not in held:
            words = max(c.task["words"] for c in self.settings.conditions)
            (texts, y), test = imdb("train", words, every), imdb(TEST, words, every)
            tested = {" ".join(text) for text in test[0]} if self.protocol == "fair" else set()
            places = [i for i, text in enumerate(texts) if " ".join(text) not in tested]
            train = [texts[i] for i in places], [y[i] for i in places]
            ids = vocabulary(train[0], size)
            held[every, size] = {
                name: encode(one, ids, words).shuffle() for name, one in (("train", train), (TEST, test))
            }
        return held[every, size]

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        task = condition.task
        width = hidden if model == "mean" else task["width"]
        embed = Embed(task["vocabulary"], width, task["dropout"], scaled=True)
        if model == "mean":
            inner: nn.Module = Identity(width)
        elif model == "transformer" and self.protocol == "paper":  # 1,186,048 weights with width 128, as in the article
            shape = Shape(norm="post", activation="relu", hidden=2_048, dropout=0.1)
            inner = Transformer(width, HEADS, 2, position="sinusoidal", block=shape)
        elif model == "transformer":
            shape = Shape(dropout=task["dropout"] / 3)
            inner = make("bi_transformer", width, hidden, num_layers=2, heads=HEADS, block=shape)
        else:
            inner = layer(model, width, hidden, start, task["words"])
        readout = "mean" if task["read"] == MEAN else "last"
        network = Classify(inner, CLASSES, readout, task["dropout"], embed=embed)
        return WithoutLengths(network) if task["read"] == PADDED else network

    def multiple(self, model: str) -> int:
        """Return the step of AttnRNN for all cells; reviews are short enough for sizes that cuDNN runs slowly."""
        others = {"transformer": 2 * HEADS, "mean": MULTIPLE}
        if model in others:
            return others[model]
        return FUSED if self.device == "cuda" else multiple(model, self.device)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model not in ("transformer", "mean"):
            return super().grid(model)
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def trivial(self, condition: Condition) -> float:
        return 1 / CLASSES

    def article_value(self, condition: Condition, model: str) -> float | None:
        as_printed = condition.task["words"] == 200 and condition.task["read"] == PADDED
        return PRINTED[model][0] if as_printed and model in PRINTED else None

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        note = "first epoch with this accuracy, mean over seeds; never: seeds that do not reach it"
        goal = Table(f"Epochs to an accuracy of {GOAL:.1%}", self._epochs_to_goal(rows), note)
        blocks = [*super().blocks(rows), goal]
        if self.protocol == "paper":
            blocks.append(
                Table(
                    "Table of the AttnRNN article", self._beside(rows), "means over seeds beside the article's numbers"
                )
            )
        return blocks

    def _beside(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        return [
            {"model": g.model, "highest": g.summary("accuracy").mean, "highest, article": PRINTED[g.model][0]}
            | {"last": g.summary("last round").mean, "last, article": PRINTED[g.model][1]}
            for g in groups(rows)
            if g.model in PRINTED
        ]

    def _epochs_to_goal(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        by_name, table = {c.name: c for c in self.settings.conditions}, []
        for g in groups(rows):
            c = by_name[g.condition]
            runs = [[t.scores[f"round {k + 1}"] for k in range(c.task["rounds"])] for t in g.trials if not t.failed]
            first = [next((k for k, value in enumerate(run) if value >= GOAL), None) for run in runs]
            there = [self.epochs(c, k) for k in first if k is not None]
            mean = sum(there) / len(there) if there else None
            table.append({"condition": g.condition, "model": g.model, "epochs": mean, "never": len(runs) - len(there)})
        return table

    def verdict(self, rows: Sequence[Trial]) -> str:
        if self.protocol == "fair":
            return f"{self._padding(rows)}{super().verdict(rows)}"
        best = {g.model: g.summary("accuracy").mean for g in groups(rows)}
        beside = [f"{m} {v:.1%} ({PRINTED[m][0]:.1%})" for m, v in best.items() if v is not None and m in PRINTED]
        listed = f"Highest test accuracy (AttnRNN article in brackets): {', '.join(beside)}."
        return f"{self.describe_reproduction(rows)}{listed} {super().verdict(rows)}"

    def _padding(self, rows: Sequence[Trial]) -> str:
        """Describe how much accuracy each model loses by reading the padding."""
        means = {(g.condition, g.model): g.summary("accuracy").mean for g in groups(rows)}
        costs = []
        for c in self.settings.conditions:
            if c.task["read"] != PADDED:
                continue
            for model in self.models(c):
                beside = [means.get((f"{c.task['words']} words, {read}", model)) for read in (LAST, MEAN)]
                one, other = means.get((c.name, model)), next((b for b in beside if b is not None), None)
                if one is not None and other is not None:
                    costs.append(f"{model} {100 * (other - one):.1f}")
        return f"Points of accuracy lost by reading the padding: {', '.join(costs)}. " if costs else ""

    def caption(self) -> str:
        if self.protocol == "paper":
            return (
                "setup of the AttnRNN article: the first 200 words, padded at the end, output read at the last "
                "position, "
                "best epoch chosen on the test set; 128 units on 128 features, which gives the article's numbers of "
                f"weights. The article has one seed, this table {self.settings.seeds}. Not given in the article, so "
                "chosen here: the 20,000 most frequent words, Adam with warm-up and cosine decay from "
                f"lr {self.settings.lrs[0]:g}, batches of {self.settings.batch}."
            )
        return (
            f"{super().caption()}\ntransformer and mean, which have no starts, try the learning rates "
            f"{', '.join(f'{lr:g}' for lr in RATES)}; parameters include the word embeddings; training reviews "
            "that are "
            "also in the test set are dropped.\nlast word: output at the end of the review; padding read: output "
            "at the "
            "last position, padding included; trivial: chance; mean: average of the word vectors, without order."
        )


class Identity(nn.Module):
    """A layer that returns its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_size = self.output_size = width

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, None]:
        return x, None


class WithoutLengths(nn.Module):
    """A model without the lengths of the rows, which reads the padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        logits: Tensor = self.model(x)
        return logits
