"""Images pixel by pixel, in reading order and in a fixed random order, trained until no model improves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from seqloom.lab.studies.data.examples import LabelledRows
from seqloom.lab.studies.data.mnist import PIXELS, mnist
from seqloom.lab.studies.support.conditions import TEST, VALID, Condition, TrialSettings
from seqloom.lab.studies.support.contenders import layer, multiple, rates
from seqloom.lab.studies.support.epochs import TRAIN, Epochs
from seqloom.lab.studies.support.outcome import Trial, groups
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify

HEADS = 4
SEQUENTIAL, PERMUTED = "sequential MNIST", "permuted MNIST"
EPOCH = 430  # steps of 128 images
# Published accuracies for h = 128 or more: an LSTM, and the best.
PUBLISHED = {SEQUENTIAL: (0.989, 0.995), PERMUTED: (0.95, 0.988)}
ATTENTION = "attention"
MODELS = ("attn_rnn", "gru", "lstm", "ln_gru", ATTENTION)
ATTENTION_SEEDS = 3  # a training of attention over 784 steps takes as long as three of a cell
STEP = 16  # hidden sizes are multiples of this for every model, so that all of them run on fused kernels


def image(problem: str, epochs: int, train: int = 55_000, steps: int = EPOCH) -> Condition:
    return Condition(problem, epochs * steps, {"problem": problem, "T": PIXELS, "rounds": epochs, "train": train})


def lower_rate(problem: str, epochs: int, *models: str) -> Condition:
    """Repeat a condition with the next lower learning rate for models of which several seeds did not finish."""
    usual = image(problem, epochs)
    return replace(usual, name=f"{problem}, lower rate", models=models, tuned_at=problem, lower=1)


class Mnist(Epochs[TrialSettings], name="mnist"):
    """Accuracy of each model on sequential and permuted MNIST, against epochs and against seconds."""

    full = TrialSettings(
        (
            image(SEQUENTIAL, 30),
            image(PERMUTED, 30),
            lower_rate(SEQUENTIAL, 30, "lstm"),
            lower_rate(PERMUTED, 30, "attn_rnn", "lstm"),
        ),
        MODELS,
        seeds=10,
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default", "chrono", "keep 1"),
        batch=128,
        valid=5_000,
        test=10_000,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        precision="bfloat16",
    )
    quick = TrialSettings(
        (image(SEQUENTIAL, 1, 1_000, 8),),
        ("attn_rnn", "gru"),
        seeds=2,
        budget=2_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=100,
        test=200,
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        data = mnist(TEST if split == TEST else TRAIN).shuffle()
        if condition.task["problem"] == PERMUTED:
            order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))
            data = LabelledRows(data.x.index_select(1, order), data.lengths, data.y)
        if split == TEST:
            return data.part(0, self.settings.test)
        held = 5_000  # of the training images, for validation
        return data.part(0, self.settings.valid) if split == VALID else data.part(held, held + condition.task["train"])

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        if model != ATTENTION:
            return Pixels(Classify(layer(model, 1, hidden, start, PIXELS), 10))
        inner = Transformer(hidden, HEADS, attention="dense", position="sinusoidal")
        return Pixels(Classify(Projected(inner, 1), 10, "mean"))

    def count_seeds(self, model: str) -> int:
        return min(self.settings.seeds, ATTENTION_SEEDS) if model == ATTENTION else self.settings.seeds

    def multiple(self, model: str) -> int:
        if self.device == "cuda":
            return STEP
        return HEADS if model == ATTENTION else multiple(model, self.device)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model != ATTENTION:
            return super().grid(model)
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def trivial(self, condition: Condition) -> float:
        return 0.1135  # the digit 1, the most frequent

    def caption(self) -> str:
        published = "; ".join(f"{name} {lstm:.1%}, {best:.1%}" for name, (lstm, best) in PUBLISHED.items())
        return (
            f"{super().caption()}\nattention: two layers, {HEADS} heads, sinusoidal positions, the mean of all steps; "
            "cells read out the last step.\n"
            "if a best learning rate was the lowest or highest of its grid, the next one was tried for all models.\n"
            "lower rate: the next lower learning rate for models of which several seeds did not finish; this condition "
            "was added after the test rows had been read.\n"
            f"published accuracy of an LSTM, and the best: {published}."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        means = []
        for c in self.settings.conditions:
            mine = {g.model: g.summary("accuracy").mean or 0.0 for g in groups(rows) if g.condition == c.name}
            ordered = sorted(mine.items(), key=lambda pair: -pair[1])
            means.append(f"{c.name}: {', '.join(f'{model} {value:.2%}' for model, value in ordered)}")
        skipped = sum(t.skipped for t in rows)
        note = f" Training steps skipped because a gradient was not finite: {skipped:,}." if skipped else ""
        return f"{'; '.join(means)}. {super().verdict(rows)}{note}"


class Pixels(nn.Module):
    """Feed bytes (B, T) to a model as one normalised feature per step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        # 0.1307 and 0.3081: mean and standard deviation of all pixels
        logits: Tensor = self.model((x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081)
        return logits
