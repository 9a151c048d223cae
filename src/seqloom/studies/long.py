"""Long sequences: images a pixel at a time, and what the first of up to 16,384 symbols was."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.attention.local import LocalAttention
from seqloom.layers.projected import Projected
from seqloom.layers.transformer import Transformer
from seqloom.models.classify import Classify
from seqloom.studies.conditions import TEST, VALID, Condition, Settings
from seqloom.studies.contenders import layer
from seqloom.studies.data.examples import Examples
from seqloom.studies.data.mnist import PIXELS, mnist
from seqloom.studies.epochs import TRAIN, Epochs
from seqloom.studies.outcome import Trial, groups
from seqloom.studies.trials import Batch, Draw

HEADS, WINDOW = 4, 64
ATTENTIONS: dict[str, Any] = {"dense": "dense", "local": partial(LocalAttention, pattern=WINDOW), "linear": "linear"}
ATTENTION_LRS = (3e-4, 1e-3, 3e-3, 1e-2)  # in place of starts, which they have not
KINDS = 8
SEQUENTIAL, PERMUTED, RECALL = "sequential MNIST", "permuted MNIST", "first symbol"
SWEEP = ("gru", "attn_rnn", *ATTENTIONS)
# What others have published for h = 128 or more: an LSTM, and the best.
PUBLISHED = {SEQUENTIAL: (0.989, 0.995), PERMUTED: (0.95, 0.988)}


def image(problem: str, steps: int, rounds: int = 4, **more: Any) -> Condition:
    return Condition(problem, steps, {"problem": problem, "T": PIXELS, "rounds": rounds, "train": 55_000}, **more)


def recall(T: int, steps: int, batch: int = 16, test: int = 10_000, **more: Any) -> Condition:
    task = {"problem": RECALL, "T": T, "rounds": 2, "train": batch * steps, "batch": batch, "test": test}
    return Condition(f"{RECALL}, T = {T:,}", steps, task, more.pop("models", SWEEP), **more)


class Long(Epochs[Settings], name="long"):
    """Dense, local, linear and recurrent on pixels one by one, and on sequences of up to 16,384 steps."""

    full = Settings(
        (
            image(SEQUENTIAL, 1_500),
            image(PERMUTED, 1_500, tuned_at=SEQUENTIAL),
            recall(1_024, 600),
            recall(4_096, 300, test=2_000, tuned_at=f"{RECALL}, T = 1,024"),
            recall(16_384, 100, test=2_000, tuned_at=f"{RECALL}, T = 1,024"),
        ),
        ("lstm", *SWEEP),
        valid=1_000,
        test=10_000,
    )
    quick = Settings(
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

    def examples(self, condition: Condition, split: str) -> Examples:
        task, s = condition.task, self.settings
        if task["problem"] == RECALL:
            return _recalled(task, s.valid if split == VALID else task["test"], split)
        data = mnist(TEST if split == TEST else TRAIN).shuffled()
        if task["problem"] == PERMUTED:
            order = torch.randperm(PIXELS, generator=torch.Generator().manual_seed(0))
            data = Examples(data.x.index_select(1, order), data.lengths, data.y)
        if split == TEST:
            return data.part(0, s.test)
        held = len(data) - task["train"]  # for validation
        return data.part(0, min(s.valid, held)) if split == VALID else data.part(held, len(data))

    def draw(self, condition: Condition) -> Draw:
        if condition.task["problem"] != RECALL:
            return super().draw(condition)
        shape = condition.task["batch"], condition.task["T"]
        lengths = torch.full(shape[:1], shape[1], device=self.device)

        def draw(random: torch.Generator, device: torch.device) -> Batch:
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
        return 2 * HEADS if model in ATTENTIONS else super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if model not in ATTENTIONS:
            return super().grid(model)
        count = len(self.settings.lrs) * len(self.settings.starts)
        return [(lr, "default") for lr in (ATTENTION_LRS if count > 1 else self.settings.lrs)[:count]]

    def trivial(self, condition: Condition) -> float:
        return 1 / KINDS if condition.task["problem"] == RECALL else 0.1135  # the digit 1, the most frequent

    def at(self, condition: Condition) -> float | None:
        return float(condition.task["T"]) if condition.task["problem"] == RECALL else None

    def kind(self, condition: Condition) -> str:
        return str(condition.task["problem"])

    def caption(self) -> str:
        rates = ", ".join(f"{lr:g}" for lr in ATTENTION_LRS)
        published = "; ".join(f"{name} {lstm:.1%}, {best:.1%}" for name, (lstm, best) in PUBLISHED.items())
        return (
            f"{super().caption()}\nattention: two layers, {HEADS} heads, sinusoidal positions; local: {WINDOW} steps "
            "to each side; of images attention reads the mean of all steps, all else the last step.\n"
            f"tuned: cells over learning rates x starts, attention over {rates}; permuted images and longer sequences "
            f"take the choice over.\nfirst symbol: of {KINDS}; few training steps where it is long: what is compared "
            f"there is the time.\npublished, an LSTM and the best: {published}."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        best = []
        for c in self.settings.conditions:
            mine = [(g.summary("accuracy").mean or 0.0, g.model) for g in groups(rows) if g.condition == c.name]
            if mine:
                value, model = max(mine)
                best.append(f"{c.name}: {model} {value:.1%}")
        return f"Highest mean accuracy: {'; '.join(best)}. {super().verdict(rows)}"


def _recalled(task: dict[str, Any], count: int, split: str) -> Examples:
    random = torch.Generator().manual_seed({TRAIN: 0, VALID: 1, TEST: 2}[split])
    x = torch.randint(KINDS, (count, task["T"]), generator=random, dtype=torch.uint8)
    return Examples(x, torch.full((count,), task["T"]), x[:, 0].long())


class Pixels(nn.Module):
    """A model of one feature a step, given bytes (B, T)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        found: Tensor = self.model(
            (x.float().unsqueeze(-1) / 255 - 0.1307) / 0.3081
        )  # mean and deviation of all pixels
        return found


class OneHot(nn.Module):
    """A model of `KINDS` features a step, given symbols (B, T)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kinds = torch.arange(KINDS, device=x.device)
        found: Tensor = self.model((x.unsqueeze(-1) == kinds).float())
        return found
