"""Long sequences: recall the first of up to 16,384 symbols."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from research.studies.data.examples import LabelledRows
from research.studies.support.conditions import LADDER, TEST, VALID, Condition, ConditionOptions, TrialSettings
from research.studies.support.contenders import RATES, layer, rates
from research.studies.support.epochs import TRAIN, Epochs
from research.studies.support.metric import ACCURACY, TrialMetric
from research.studies.support.mixers import HEADS, is_linear, make_linear
from research.studies.support.outcome import Trial, groups
from research.studies.support.trials import Draw, Tensors
from seqloom.attention.local import LocalAttention
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify

WINDOW = 64
ATTENTIONS: dict[str, Any] = {"dense": "dense", "local": partial(LocalAttention, pattern=WINDOW), "linear": "linear"}
KINDS = 8
SOLVED = 0.99
RECALL = "first symbol"
MODELS = ("gru", "attn_rnn", *ATTENTIONS)


def recall(T: int, steps: int, batch: int = 16, test: int = 10_000, **more: Unpack[ConditionOptions]) -> Condition:
    task = {"problem": RECALL, "T": T, "rounds": 1, "train": batch * steps, "batch": batch, "test": test}
    more.setdefault("models", MODELS)
    return Condition(f"{RECALL}, T = {T:,}", steps, task, **more)


class Long(Epochs[TrialSettings], name="long"):
    """Dense, local and linear attention and recurrent cells that recall the first of up to 16,384 symbols."""

    metrics = (TrialMetric("accuracy", ACCURACY, solved=SOLVED), *Epochs.metrics[1:])
    full = TrialSettings(
        (
            recall(1_024, 1_200),
            recall(4_096, 300, test=2_000, tuned_at=f"{RECALL}, T = 1,024"),
            recall(16_384, 100, test=1_000, tuned_at=f"{RECALL}, T = 1,024"),
        ),
        MODELS,
        batch=128,
        valid=5_000,
        test=10_000,
        tuning=0.25,
    )
    quick = TrialSettings(
        (recall(8, 120, 32, 500), recall(16, 80, 32, 500, tuned_at=f"{RECALL}, T = 8")),
        MODELS,
        seeds=2,
        budget=6_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=32,
        valid=200,
        test=500,
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        task = condition.task
        return _make_recall(task, min(self.settings.valid, task["test"]) if split == VALID else task["test"], split)

    def draw(self, condition: Condition) -> Draw:
        shape = condition.task["batch"], condition.task["T"]
        lengths = torch.full(shape[:1], shape[1], device=self.device)

        def draw(random: torch.Generator, device: torch.device) -> Tensors:
            x = torch.randint(KINDS, shape, generator=random, device=device)
            return x, lengths, x[:, 0]

        return draw

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        if not is_block(model):
            return OneHot(Classify(layer(model, KINDS, hidden, start, condition.task["T"]), KINDS))
        if is_linear(model):
            inner = make_linear(model, hidden, num_layers=2)
        else:
            inner = Transformer(hidden, HEADS, attention=ATTENTIONS[model], position="sinusoidal")
        return OneHot(Classify(Projected(inner, KINDS), KINDS, "last"))

    def multiple(self, model: str) -> int:
        return 2 * HEADS if is_linear(model) else HEADS if model in ATTENTIONS else super().multiple(model)

    def grid(self, model: str) -> list[tuple[float, str]]:
        if not is_block(model):
            return super().grid(model)
        s = self.settings
        several = len(s.lrs) * len(s.starts)
        tried = LADDER[-several:] if several > len(RATES) else rates(s.lrs, s.starts)
        return [(lr, "default") for lr in tried]

    def count_answers(self, condition: Condition) -> int | None:
        return int(condition.task["test"])

    def trivial(self, condition: Condition) -> float:
        return 1 / KINDS

    def at(self, condition: Condition) -> float:
        return float(condition.task["T"])

    def kind(self, condition: Condition) -> str:
        return str(condition.task["problem"])

    def caption(self) -> str:
        tried = ", ".join(f"{lr:g}" for lr, _ in self.grid("dense"))
        return (
            f"{super().caption()}\nattention: two layers, {HEADS} heads, sinusoidal positions; local: {WINDOW} steps "
            "to each side; all models read out the last step.\n"
            f"tuning: cells over learning rates x starts, attention over {tried}; longer sequences reuse these "
            "choices.\n"
            f"first symbol: one of {KINDS}, batches of 16, fewer steps for longer sequences; the study complexity "
            "measures the cost of a step."
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


def is_block(model: str) -> bool:
    """Return whether this is attention or a linear recurrence in blocks of a Transformer."""
    return model in ATTENTIONS or is_linear(model)


def _make_recall(task: dict[str, Any], count: int, split: str) -> LabelledRows:
    random = torch.Generator().manual_seed({TRAIN: 0, VALID: 1, TEST: 2}[split])
    x = torch.randint(KINDS, (count, task["T"]), generator=random, dtype=torch.uint8)
    return LabelledRows(x, torch.full((count,), task["T"]), x[:, 0].long())


class OneHot(nn.Module):
    """Feed symbols (B, T) to a model as one-hot rows of `KINDS` features."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        kinds = torch.arange(KINDS, device=x.device)
        logits: Tensor = self.model((x.unsqueeze(-1) == kinds).float())
        return logits
