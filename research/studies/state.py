"""State tracking: what a nonlinear recurrence can do that linear recurrences and Transformers cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from research.studies.data.state_problems import StateProblem, make_state_problem
from research.studies.data.symbols import count_labels, find_late
from research.studies.support import state_report
from research.studies.support.conditions import VALID, Condition, Spec, TrialSettings
from research.studies.support.contenders import FUSED, MULTIPLE, layer, rates, starts
from research.studies.support.epochs import SnapshotModel
from research.studies.support.growing import GROWING, GrowingBatches, labelled_loss
from research.studies.support.metric import ACCURACY, SCALED, TrialMetric
from research.studies.support.mixers import HEADS, is_linear, make_linear
from research.studies.support.outcome import Trial
from research.studies.support.state_report import PRIMARY, SOLVED
from research.studies.support.trials import Draw, Tensors, Trials
from seqloom.lab.data.task import IGNORE
from seqloom.lab.report.page import PageBlock
from seqloom.layers.transformer.layer import Projected, Transformer

UNIFORM = "uniform weights"
LAYERS = {"min_gru": 2, "min_gru_4": 4, "transformer": 2, "transformer_4": 4}  # models of more than one layer
CELLS = {UNIFORM: "attn_rnn", "min_gru_4": "min_gru"}  # the cell of a model with another name
MODELS = ("attn_rnn", UNIFORM, "gru", "lstm", "ln_gru", "min_gru", "transformer")
LATE = 8  # the last eighth of the steps is scored
TIE = 1e-3  # weight of learning speed in tuning: it decides between settings that solve the problem
TUNING_ROUNDS = 5  # while tuning, every fifth round is validated
SCORED, MIN_WIDTH = {"cpu": 1 << 20, "cuda": 1 << 27}, 128  # numbers of a layer's input or output scored at once


@dataclass(frozen=True)
class StateSettings(TrialSettings):
    """Settings of the study; models outside the primary contrasts have at most `other_seeds` seeds."""

    other_seeds: int = 5
    train_length: int = 40
    valid_lengths: tuple[int, ...] = (40, 256)
    test_lengths: tuple[int, ...] = (40, 64, 128, 256, 500, 2_048)
    main_length: int = 500  # the test length of the first metric
    rounds: int = 40  # validations during training


def track(problem: str, steps: int = 4_000, name: str = "", **more: object) -> Condition:
    """Return a condition; `batch`, `length` and `valid_lengths` replace those of the settings.

    The training length grows with the power `growth` of the steps, by default 1.
    """
    return Condition(name or problem, steps, {"problem": problem, **more})


def lower_rate(problem: str, *models: str) -> Condition:
    """Repeat a problem with the next lower learning rate: a seed had solved it and lost the solution again."""
    usual = track(problem)
    return replace(usual, name=f"{problem}, lower rate", models=models, tuned_at=problem, lower=1)


class State(Trials[StateSettings], name="state"):
    """Which models track state past the lengths they were trained on: parity, groups, a register, flip-flops."""

    metrics = (
        TrialMetric("accuracy", ACCURACY),
        TrialMetric("scaled", SCALED),
        TrialMetric("while training", ACCURACY),
    )
    axis = "test length"
    full = StateSettings(
        (
            track("parity"),
            track("mod 5"),
            track("S3"),
            track("A5", 10_000),
            track("register"),
            lower_rate("S3", "attn_rnn", UNIFORM, "gru"),
            track("flip-flop 0.98"),
            track("cycle"),
            track("even pairs"),
            track("arithmetic"),
            track("S5", 10_000),
            track("S5 swaps", 10_000),
            track("flip-flop 0.8"),
            track("keyed 4"),
            track("keyed 8"),
            track("keyed 16"),
            track("Dyck-2 depth 4"),
            track("Dyck-2 depth 8"),
            track("recall"),
        ),
        MODELS,
        seeds=10,
        lrs=(1e-3, 3e-3, 1e-2),
        starts=("default", "chrono", "keep 1"),
        batch=128,
        valid=1_024,
        test=1_024,
        tuning=0.5,
        tuning_seeds=2,
        widen=True,
        widen_by=0.01,
        precision="float32",
    )
    quick = StateSettings(
        (track("parity", 400),),
        ("gru", "min_gru"),
        seeds=5,
        budget=3_000,
        lrs=(1e-2,),
        starts=("default",),
        batch=64,
        valid=128,
        test=256,
        precision="float32",
        train_length=20,
        valid_lengths=(20, 64),
        test_lengths=(20, 64, 256),
        main_length=256,
        rounds=10,
    )

    def problem(self, condition: Condition) -> StateProblem:
        return make_state_problem(condition.task["problem"])

    def length(self, condition: Condition) -> int:
        """Return the longest training sequences."""
        return int(condition.task.get("length", self.settings.train_length))

    def count_seeds(self, model: str) -> int:
        s = self.settings
        return s.seeds if model in PRIMARY else min(s.seeds, s.other_seeds)

    def grid(self, model: str) -> list[tuple[float, str]]:
        s = self.settings
        if model.startswith("transformer") or is_linear(model):
            return [(lr, "default") for lr in rates(s.lrs, s.starts)]
        return [(lr, start) for lr in s.lrs for start in starts(CELLS.get(model, model), s.starts)]

    def multiple(self, model: str) -> int:
        if model.startswith("transformer") or is_linear(model):
            return 2 * HEADS  # rotary positions turn pairs of features
        return FUSED if self.device == "cuda" else MULTIPLE

    def key(self, spec: Spec) -> dict[str, Any]:
        s = self.settings
        lengths = [s.train_length, list(s.valid_lengths), list(s.test_lengths), s.main_length, s.rounds]
        return super().key(spec) | {"lengths": lengths}

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        problem, depth = self.problem(condition), LAYERS.get(model, 1)
        if model.startswith("transformer"):
            inner = Transformer(hidden, HEADS, depth, causal=True, position="rotary")
            read: nn.Module = Projected(inner, problem.symbols)
        elif is_linear(model):
            read = Projected(make_linear(model, hidden, start=start), problem.symbols)
        else:
            cell = CELLS.get(model, model)
            read = layer(cell, problem.symbols, hidden, start, self.length(condition), num_layers=depth)
        if model == UNIFORM:
            for weight in (read.get_parameter(name) for name in ("weight_q_l0", "bias_q_l0")):
                nn.init.zeros_(weight)
                weight.requires_grad_(False)
        tracker = Tracker(read, hidden, problem.symbols, problem.classes)
        return SnapshotModel(tracker, self.settings.rounds, self.steps(condition), self.settings.precision)

    def draw(self, condition: Condition) -> GrowingBatches:
        s = self.settings
        batch = condition.task.get("batch", s.batch)
        growing = GROWING * self.steps(condition)
        power = condition.task.get("growth", 1)
        return GrowingBatches(self.problem(condition).draw, batch, self.length(condition), growing, power)

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        return labelled_loss(model, batch)

    def prepare(self, draw: Draw, model: nn.Module, random: torch.Generator, done: int) -> None:
        assert isinstance(model, SnapshotModel) and isinstance(draw, GrowingBatches)
        model.keep(done)
        draw.prepare(random, done)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        assert isinstance(model, SnapshotModel)
        model.finish()
        s, problem, curve = self.settings, self.problem(condition), dict[int, float]()
        every = TUNING_ROUNDS if split == VALID else 1
        for k in range(model.rounds - 1, -1, -every)[::-1]:  # the last one is the final model
            model.go_to(k)
            curve[k] = self._accuracy(model, problem, self.length(condition), VALID, device)
        valid_lengths = condition.task.get("valid_lengths", s.valid_lengths)
        lengths = valid_lengths if split == VALID else s.test_lengths
        by_length = {T: self._accuracy(model, problem, T, split, device) for T in lengths}
        main = sum(by_length.values()) / len(by_length) if split == VALID else by_length[s.main_length]
        scores = {"accuracy": main, "scaled": (main - problem.chance) / (1 - problem.chance)}
        scores |= {"while training": sum(curve.values()) / len(curve)}
        scores |= {f"T = {T:,}": value for T, value in by_length.items()}
        scores |= {f"round {k + 1}": value for k, value in curve.items()}
        solved = [k for k, value in curve.items() if value >= SOLVED]
        return scores | ({"steps to solve": self.steps(condition) * (solved[0] + 1) / model.rounds} if solved else {})

    def _accuracy(self, model: nn.Module, problem: StateProblem, steps: int, split: str, device: torch.device) -> float:
        """Return the accuracy in the last eighth of new sequences, the same for every model."""
        total = self.settings.valid if split == VALID else self.settings.test
        held: dict[tuple[str, str, int], Tensors] = self.__dict__.setdefault("_held", {})
        if (problem.name, split, steps) not in held:
            random = torch.Generator(device).manual_seed(_seed(problem.name, split, steps))
            held[problem.name, split, steps] = problem.draw(random, total, steps)
        x, y = held[problem.name, split, steps]
        late = y[:, find_late(steps, LATE) :]
        most = max(1, SCORED[device.type] // (steps * max(problem.symbols, MIN_WIDTH)))
        parts = zip(x.split(most), late.split(most), strict=True)
        hits = torch.stack([(model(one)[:, -late.shape[1] :].argmax(-1) == label).sum() for one, label in parts]).sum()
        return float(hits) / max(1.0, float((late != IGNORE).sum()))

    def rate_tuning(self, trial: Trial) -> float:
        return trial.scores["accuracy"] + TIE * trial.scores["while training"]

    def count_answers(self, condition: Condition) -> int | None:
        return count_labels(condition.task["problem"], self.settings.test, self.settings.main_length, LATE)

    def trivial(self, condition: Condition) -> float:
        return self.problem(condition).chance

    def table(self, rows: Sequence[Trial]) -> list[dict[str, Any]]:
        return state_report.table(self, rows)

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        return state_report.blocks(self, rows)

    def caption(self) -> str:
        return state_report.caption(self)

    def verdict(self, rows: Sequence[Trial]) -> str:
        return state_report.verdict(self, rows)


def _seed(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()[:7], "little")


class Tracker(nn.Module):
    """Read symbols (B, T) as one-hot rows and classify after every step: (B, T, classes)."""

    symbols: Tensor

    def __init__(self, layer: nn.Module, width: int, symbols: int, classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, classes)
        self.register_buffer("symbols", torch.arange(symbols), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.layer(torch.eq(x.unsqueeze(-1), self.symbols).to(self.head.weight.dtype))
        scores: Tensor = self.head(y)
        return scores
