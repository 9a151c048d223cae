"""The adding problem at increasing lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.support.conditions import Condition, ConditionOptions, TrialSettings
from research.studies.support.metric import ERROR, TrialMetric
from research.studies.support.outcome import Trial, groups
from research.studies.support.synthetic import Shape, SyntheticTrials
from research.studies.support.trial_report import describe_schedule
from research.studies.support.trials import Tensors
from seqloom.lab.data.synthetic.adding import adding
from seqloom.lab.data.synthetic.task import Problem

TRIVIAL = 1 / 3  # mean absolute error of always answering 1
SOLVED = 0.05
PAPER_STEPS = 30 * 100  # of the AttnRNN article, per length
# AttnRNN article, experiment 1: mean absolute error.
PRINTED = {
    50: {"rnn": 0.3411, "gru": 0.0111, "lstm": 0.0666, "attn_rnn": 0.0069},
    100: {"rnn": 0.3392, "gru": 0.0108, "lstm": 0.0083, "attn_rnn": 0.0110},
    200: {"rnn": 0.3244, "gru": 0.0048, "lstm": 0.0231, "attn_rnn": 0.0014},
    400: {"rnn": 0.3458, "gru": 0.0208, "lstm": 0.0427, "attn_rnn": 0.0011},
}


def at(T: int, steps: int, marks: str = "anywhere", **more: Unpack[ConditionOptions]) -> Condition:
    return Condition(f"T = {T:,}, marks {marks}", steps, {"steps": T, "marks": marks}, **more)


ALL, LONG, LONGEST = ("rnn", "lstm", "gru", "attn_rnn"), ("lstm", "gru", "attn_rnn"), ("gru", "attn_rnn")
EARLIER = ("", *(f"T = {T}, marks anywhere" for T in (50, 100, 200)))


class Adding(SyntheticTrials[TrialSettings], name="adding"):
    """Longest gap at which each cell still solves the adding problem, up to 10,000 steps."""

    metrics = (TrialMetric("MAE", ERROR, log=True, solved=SOLVED), TrialMetric("MSE", ERROR, log=True))
    full = TrialSettings(
        conditions=(
            at(20, 1_500),
            at(50, 1_500),
            at(200, 2_000),
            at(1_000, 2_500, models=LONG, widens=False),
            at(1_000, 2_500, "halves", models=LONG, tuned_at="T = 1,000, marks anywhere"),
            at(10_000, 800, models=LONGEST, tuned_at="T = 1,000, marks anywhere"),
        ),
        models=ALL,
        lrs=(1e-3, 3e-3, 1e-2),
        widen=True,
        widen_by=0.0005,
        finalists=2,
        finalist_seeds=2,
    )
    quick = TrialSettings(
        (at(10, 150), at(30, 150, tuned_at="T = 10, marks anywhere")),
        ALL,
        seeds=3,
        budget=4_000,
        lrs=(1e-2,),
        batch=32,
        test=1_000,
    )
    paper = TrialSettings(
        tuple(at(T, PAPER_STEPS, after=earlier) for T, earlier in zip(PRINTED, EARLIER, strict=True)),
        ("rnn", "gru", "lstm", "attn_rnn"),
        seeds=1,
        hidden=128,
        lrs=(1e-3,),
        starts=("default",),
        batch=128,
        test=100,
        constant_rate=True,
    )
    paper_quick = TrialSettings((at(50, 200),), paper.models, 1, 0, 32, (1e-2,), ("default",), 32, test=100)

    def problem(self, condition: Condition) -> Problem:
        return adding(**condition.task).problem

    def shape(self, condition: Condition) -> Shape:
        return Shape(inputs=2, outputs=1, span=condition.task["steps"])

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        x, y = batch
        return F.mse_loss(model(x), y)

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        off = model(x) - y
        return {"MAE": off.abs().mean(), "MSE": off.square().mean()}

    def trivial(self, condition: Condition) -> float:
        return TRIVIAL

    def article_value(self, condition: Condition, model: str) -> float | None:
        return PRINTED.get(condition.task["steps"], {}).get(model)

    def at(self, condition: Condition) -> float:
        return float(condition.task["steps"])

    def kind(self, condition: Condition) -> str:
        return f"marks {condition.task['marks']}"

    def verdict(self, rows: Sequence[Trial]) -> str:
        reach: dict[str, str] = {}
        for g in groups(rows):
            reach.setdefault(g.model, "none")
            if all(v is not None and v < SOLVED for v in g.values("MAE")):
                reach[g.model] = g.condition
        lengths = "; ".join(f"{m}: {reach[m]}" for m in self.settings.models if m in reach)
        first = f"Longest length that every seed solves (mean absolute error below {SOLVED}): {lengths}."
        return f"{self.describe_reproduction(rows)}{first} {super().verdict(rows)}"

    def caption(self) -> str:
        if self.protocol == "paper":
            return (
                "setup of the AttnRNN article: one model trained on each length in turn, 100 test sequences (standard "
                f"error about 0.02 if nothing is learned). The article has one seed, this table {self.settings.seeds}. "
                f"{describe_schedule(self)}"
            )
        missing = "models are missing at lengths where training takes too long"
        claim = "claim of the RNN family article: RNN fails beyond T = 20, LSTM and GRU work beyond 1,000"
        return f"{super().caption()}\ntrivial: always answering 1; {missing}.\n{claim}."
