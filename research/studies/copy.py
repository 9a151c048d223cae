"""Copy memory: repeat symbols after a delay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.adding import PAPER_STEPS
from research.studies.support.conditions import Condition, ConditionOptions, TrialSettings
from research.studies.support.metric import ACCURACY, ERROR, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.synthetic import Shape, SyntheticTrials
from research.studies.support.trial_report import describe_schedule
from research.studies.support.trials import Tensors
from seqloom.lab.data.synthetic.copy import copy
from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Problem
from seqloom.lab.data.task import IGNORE

SOLVED = 0.99
SYMBOLS, KINDS = 10, 8
# AttnRNN article, experiment 2: accuracy.
PRINTED = {
    30: {"rnn": 0.1380, "gru": 0.6620, "lstm": 0.5480, "attn_rnn": 0.8140},
    60: {"rnn": 0.2065, "gru": 0.4550, "lstm": 0.3955, "attn_rnn": 0.5780},
    90: {"rnn": 0.1917, "gru": 0.3877, "lstm": 0.3413, "attn_rnn": 0.4720},
    120: {"rnn": 0.1643, "gru": 0.3463, "lstm": 0.3008, "attn_rnn": 0.4383},
}
PRIMARY = ("gru", "attn_rnn")
BESIDE, SEEDS_BESIDE = ("rnn", "lstm"), 5  # models outside of the primary contrast, and their seeds at most
EARLIER = ("", *(f"third, T = {T}" for T in (30, 60, 90)))


def at(T: int, steps: int, form: str = "delay", count: int = SYMBOLS, **more: Unpack[ConditionOptions]) -> Condition:
    return Condition(f"{form}, T = {T:,}", steps, {"steps": T, "form": form, "count": count}, **more)


def span(task: dict[str, Any]) -> int:
    """From the first symbol to the last answer."""
    n: int = task["count"]
    return int(task["steps"]) + {"delay": 2 * n, "selective": n + 1, "third": 0}[task["form"]]


class Copy(SyntheticTrials[TrialSettings], name="copy"):
    """Symbols to repeat after a delay, and symbols scattered among blanks."""

    metrics = (TrialMetric("accuracy", ACCURACY, solved=SOLVED), TrialMetric("loss", ERROR, log=True))
    full = TrialSettings(
        conditions=(
            at(100, 3_000),
            at(200, 3_000, "selective", models=PRIMARY),
        ),
        models=("rnn", "lstm", "gru", "attn_rnn"),
        seeds=10,
        lrs=(3e-3, 1e-2, 3e-2, 1e-1),
        starts=("default", "chrono", "keep 1"),
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        widen_by=0.01,
        finalists=3,
    )
    quick = TrialSettings(
        (at(5, 250, count=2), at(8, 200, "selective", count=2, tuned_at="delay, T = 5")),
        ("rnn", "lstm", "gru", "attn_rnn"),
        seeds=3,
        budget=5_000,
        lrs=(1e-2,),
        batch=32,
        test=500,
    )
    paper = TrialSettings(
        tuple(at(T, PAPER_STEPS, "third", after=earlier) for T, earlier in zip(PRINTED, EARLIER, strict=True)),
        ("rnn", "gru", "lstm", "attn_rnn"),
        seeds=1,
        hidden=128,
        lrs=(1e-3,),
        starts=("default",),
        batch=128,
        test=100,
        constant_rate=True,
    )
    paper_quick = TrialSettings(
        (at(30, 150, "third"),), ("rnn", "gru", "lstm", "attn_rnn"), 1, 0, 32, (1e-2,), ("default",), 32, test=100
    )

    def count_seeds(self, model: str) -> int:
        seeds = super().count_seeds(model)
        return min(seeds, SEEDS_BESIDE) if model in BESIDE else seeds

    def problem(self, condition: Condition) -> Problem:
        return copy(kinds=KINDS, **condition.task).problem

    def shape(self, condition: Condition) -> Shape:
        third = condition.task["form"] == "third"
        inputs, outputs = (KINDS, KINDS) if third else (KINDS + 2, KINDS + 1)
        return Shape(inputs, outputs, span(condition.task), every=True, symbols=(FIRST_SYMBOL, inputs))

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        x, y = batch
        return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=IGNORE)

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        scores, asked = model(x), y > 0  # 0 is the blank; ignored positions are negative
        right = (scores.argmax(-1) == y) & asked
        loss = F.cross_entropy(scores.flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        return {"accuracy": right.sum() / asked.sum(), "loss": loss}

    def count_answers(self, condition: Condition) -> int | None:
        task = condition.task
        return self.settings.test * (task["steps"] // 3 if task["form"] == "third" else task["count"])

    def trivial(self, condition: Condition) -> float:
        return 1 / (KINDS - 1) if condition.task["form"] == "third" else 1 / KINDS

    def article_value(self, condition: Condition, model: str) -> float | None:
        third = condition.task["form"] == "third"
        return PRINTED.get(condition.task["steps"], {}).get(model) if third else None

    def at(self, condition: Condition) -> float:
        return float(condition.task["steps"])

    def kind(self, condition: Condition) -> str:
        return str(condition.task["form"])

    def verdict(self, rows: Sequence[Trial]) -> str:
        solved: dict[str, list[str]] = {g.model: [] for g in groups(rows)}
        for g in groups(rows):
            if all(v is not None and v >= SOLVED for v in g.values("accuracy")):
                solved[g.model].append(g.condition)
        listed = "; ".join(f"{model}: {', '.join(where) or 'none'}" for model, where in solved.items())
        solvers = f"Solved by every seed (accuracy at least {SOLVED}): {listed}."
        return f"{self.describe_reproduction(rows)}{solvers} {super().verdict(rows)}"

    def _describe_seeds(self) -> str:
        others = [m for m in self.settings.models if self.count_seeds(m) < self.settings.seeds]
        return f"; {SEEDS_BESIDE} seeds of {' and '.join(others)}" if others else ""

    def caption(self) -> str:
        s = self.settings
        if self.protocol == "paper":
            return (
                "setup of the AttnRNN article: T/3 symbols to repeat in the last third, the filler is a symbol "
                "too; one "
                "model trained on each length in turn, 100 test sequences. The article has one seed, this table "
                f"{s.seeds}. {describe_schedule(self)}"
            )
        losses = ", ".join(f"{c.task['count'] * math.log(KINDS) / span(c.task):.4f}" for c in s.conditions)
        return (
            f"{super().caption()}\n{s.conditions[0].task['count']} symbols of {KINDS}; accuracy: of the symbols; "
            f"trivial: chance. loss: over all steps including blanks; answering blanks and chance gives {losses}. "
            f"Models are missing at lengths where training takes too long{self._describe_seeds()}."
        )
