"""Long sequences: images pixel by pixel, and recalling the first of up to 16,384 symbols."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from seqloom.attention.local import LocalAttention
from seqloom.lab.studies.data.examples import LabelledRows
from seqloom.lab.studies.data.mnist import PIXELS, mnist
from seqloom.lab.studies.support.conditions import TEST, VALID, Condition, ConditionOptions, TrialSettings
from seqloom.lab.studies.support.contenders import RATES, layer, rates
from seqloom.lab.studies.support.epochs import TRAIN, Epochs
from seqloom.lab.studies.support.outcome import Trial, groups
from seqloom.lab.studies.support.trials import Draw, Tensors
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify

HEADS, WINDOW = 4, 64
ATTENTIONS: dict[str, Any] = {"dense": "dense", "local": partial(LocalAttention, pattern=WINDOW), "linear": "linear"}
KINDS = 8
SEQUENTIAL, PERMUTED, RECALL = "sequential MNIST", "permuted MNIST", "first symbol"
SWEEP, ON_IMAGES = ("gru", "attn_rnn", *ATTENTIONS), ("lstm", "gru", "attn_rnn", "dense")
EPOCH = 430  # steps of 128 images
# Published accuracies for h = 128 or more: an LSTM, and the best.
PUBLISHED = {SEQUENTIAL: (0.989, 0.995), PERMUTED: (0.95, 0.988)}


def image(problem: str, epochs: int, name: str = "", **more: Unpack[ConditionOptions]) -> Condition:
    task = {"problem": problem, "T": PIXELS, "rounds": 4, "train": 55_000}
    more.setdefault("models", ON_IMAGES)
    return Condition(name or problem, epochs * EPOCH, task, **more)


def recall(T: int, steps: int, batch: int = 16, test: int = 10_000, **more: Unpack[ConditionOptions]) -> Condition:
    task = {"problem": RECALL, "T": T, "rounds": 1, "train": batch * steps, "batch": batch, "test": test}
    more.setdefault("models", SWEEP)
    return Condition(f"{RECALL}, T = {T:,}", steps, task, **more)


class Long(Epochs[TrialSettings], name="long"):
    """Dense, local and linear attention and recurrent cells on MNIST pixels and up to 16,384 steps."""

    full = TrialSettings(
        (
            image(SEQUENTIAL, 4),
            image(SEQUENTIAL, 16, f"{SEQUENTIAL}, longer", models=("attn_rnn",), tuned_at=SEQUENTIAL),
            image(PERMUTED, 4, tuned_at=SEQUENTIAL),
            image(PERMUTED, 16, f"{PERMUTED}, longer", models=("attn_rnn",), tuned_at=SEQUENTIAL),
            recall(1_024, 1_200),
            recall(4_096, 300, test=2_000, tuned_at=f"{RECALL}, T = 1,024"),
            recall(16_384, 100, test=1_000, tuned_at=f"{RECALL}, T = 1,024"),
        ),
        ("lstm", *SWEEP),
        batch=128,
        valid=5_000,
        test=10_000,
        tuning=0.25,
    )
    quick = TrialSettings(
        (recall(8, 120, 32, 500), recall(16, 80, 32, 500, tuned_at=f"{RECALL}, T = 8")),
        SWEEP,
        seeds=2,
        budget=6_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=200,
        test=500,
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        task, s = condition.task, self.settings
        if task["problem"] == RECALL:
            return _make_recall(task, min(s.valid, task["test"]) if split == VALID else task["test"], split)
        data = mnist(TEST if split == TEST else TRAIN).shuffle()
        if task["problem"] == PERMUTED:
            order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))
            data = LabelledRows(data.x.index_select(1, order), data.lengths, data.y)
        if split == TEST:
            return data.part(0, s.test)
        held = len(data) - task["train"]  # for validation
        return data.part(0, min(s.valid, held)) if split == VALID else data.part(held, len(data))

    def draw(self, condition: Condition) -> Draw:
        if condition.task["problem"] != RECALL:
            return super().draw(condition)
        shape = condition.task["batch"], condition.task["T"]
        lengths = torch.full(shape[:1], shape[1], device=self.device)

        def draw(random: torch.Generator, device: torch.device) -> Tensors:
            x = torch.randint(KINDS, shape, generator=random, device=device)
            return x, lengths, x[:, 0]

        return draw

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        asked = condition.task["problem"] == RECALL
        inputs, classes = (KINDS, KINDS) if asked else (1, 10)
        if model not in ATTENTIONS:
            made = Classify(layer(model, inputs, hidden, start, condition.task["T"]), classes)
        else:
            inner = Transformer(hidden, HEADS, attention=ATTENTIONS[model], position="sinusoidal")
            made = Classify(Projected(inner, inputs), classes, "last" if asked else "mean")
        return OneHot(made) if asked else Pixels(made)

    def multiple(self, model: str) -> int:
        return HEADS if model in ATTENTIONS else super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model not in ATTENTIONS:
            return super().grid(model)
        return [(lr, "default") for lr in rates(self.settings.lrs, self.settings.starts)]

    def trivial(self, condition: Condition) -> float:
        return 1 / KINDS if condition.task["problem"] == RECALL else 0.1135  # the digit 1, the most frequent

    def at(self, condition: Condition) -> float | None:
        return float(condition.task["T"]) if condition.task["problem"] == RECALL else None

    def kind(self, condition: Condition) -> str:
        return str(condition.task["problem"])

    def caption(self) -> str:
        tried = ", ".join(f"{lr:g}" for lr in RATES)
        published = "; ".join(f"{name} {lstm:.1%}, {best:.1%}" for name, (lstm, best) in PUBLISHED.items())
        return (
            f"{super().caption()}\nattention: two layers, {HEADS} heads, sinusoidal positions; local: {WINDOW} steps "
            "to each side; on images attention reads out the mean of all steps, all other models the last step.\n"
            f"tuning: cells over learning rates x starts, attention over {tried}; permuted images, longer "
            "trainings and "
            "longer sequences reuse these choices; only AttnRNN has longer trainings, which are not compared.\n"
            f"first symbol: one of {KINDS}, batches of 16, fewer steps for longer sequences; the study complexity "
            "measures the cost of a step.\n"
            f"published accuracy of an LSTM, and the best: {published}."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        best = []
        for c in self.settings.conditions:
            mine = [(g.summary("accuracy").mean or 0.0, g.model) for g in groups(rows) if g.condition == c.name]
            if mine:
                value, model = max(mine)
                learned = value > 1.2 * self.trivial(c)
                best.append(f"{c.name}: {f'{model} {value:.1%}' if learned else 'none clearly above chance'}")
        return f"Highest mean accuracy: {'; '.join(best)}. {super().verdict(rows)}"


def _make_recall(task: dict[str, Any], count: int, split: str) -> LabelledRows:
    random = torch.Generator().manual_seed({TRAIN: 0, VALID: 1, TEST: 2}[split])
    x = torch.randint(KINDS, (count, task["T"]), generator=random, dtype=torch.uint8)
    return LabelledRows(x, torch.full((count,), task["T"]), x[:, 0].long())


class Pixels(nn.Module):
    """Feed bytes (B, T) to a model as one normalised feature per step."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        found: Tensor = self.model(
            (x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081
        )  # mean and standard deviation of all pixels
        return found


class OneHot(nn.Module):
    """Feed symbols (B, T) to a model as one-hot rows of `KINDS` features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kinds = torch.arange(KINDS, device=x.device)
        found: Tensor = self.model((x.unsqueeze(-1) == kinds).float())
        return found
