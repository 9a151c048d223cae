"""Trials on sequences of symbols with a label after every step, tested at several lengths."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.data.symbols import SymbolProblem, count_labels, find_late, make_problem
from research.studies.support.conditions import VALID, Condition, TrialSettings
from research.studies.support.contenders import FUSED
from research.studies.support.epochs import use_precision
from research.studies.support.growing import GROWING, Generate, GrowingBatches, labelled_loss
from research.studies.support.metric import ACCURACY, ERROR, TrialMetric
from research.studies.support.outcome import Contest, Trial, contests, format_contests, groups
from research.studies.support.trials import Draw, Tensors, Trials
from seqloom.lab.data.task import IGNORE
from seqloom.lab.report.page import Chart, Curve, PageBlock

SCORED = {"cpu": 1 << 20, "cuda": 1 << 26}  # numbers of a layer's input scored at once
MIN_WIDTH = 128
EVEN = 8  # hidden sizes are multiples of this: four heads with rotary positions, which turn pairs of features

S = TypeVar("S", bound=TrialSettings)


def read_symbols(
    name: str,
    problem: str,
    steps: int,
    T: int,
    lengths: Sequence[int] = (),
    late: int = 1,
    models: tuple[str, ...] = (),
    **more: object,
) -> Condition:
    """Return a condition: train at length T, test at `lengths`; `main` is the result, by default the last of them.

    Accuracy is that of the last 1 / `late` of the steps. Settings are tuned at T and at `main`. With `grows=True`
    the training length grows from 1 to T. `against`, `budget` and `precision` replace those of the study.
    """
    tested = list(lengths or (T,))
    task = {"problem": problem, "T": T, "lengths": tested, "main": tested[-1], "late": late} | more
    return Condition(name, steps, task, models)


class SymbolTrials(Trials[S]):
    """A subclass defines `layer`, from one-hot symbols (B, T, D) to features (B, T, H)."""

    metrics: ClassVar[tuple[TrialMetric, ...]] = (TrialMetric("accuracy", ACCURACY), TrialMetric("bits", ERROR))

    def layer(self, model: str, symbols: int, hidden: int, start: str, condition: Condition) -> nn.Module:
        raise NotImplementedError

    def problem(self, condition: Condition) -> SymbolProblem:
        return make_problem(condition.task["problem"])

    def multiple(self, model: str) -> int:
        return FUSED if self.device == "cuda" and "attn_rnn" in model else EVEN

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        problem = self.problem(condition)
        inner = self.layer(model, problem.symbols, hidden, start, condition)
        precision = condition.task.get("precision", self.settings.precision)
        return SymbolReader(inner, hidden, problem.symbols, problem.classes, precision)

    def budget(self, condition: Condition) -> int:
        return int(condition.task.get("budget", self.settings.budget))

    def draw(self, condition: Condition) -> Draw:
        growing = GROWING * self.steps(condition) if condition.task.get("grows") else 0.0
        return GrowingBatches(self.generate(condition), self.settings.batch, condition.task["T"], growing)

    def generate(self, condition: Condition) -> Generate:
        """Return a function that draws training sequences."""
        problem = self.problem(condition)
        return lambda random, rows, steps: problem.draw(random, rows, steps, "train")

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        return labelled_loss(model, batch)

    def prepare(self, draw: Draw, model: nn.Module, random: torch.Generator, done: int) -> None:
        assert isinstance(draw, GrowingBatches)
        draw.prepare(random, done)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        task = condition.task
        lengths, main = task["lengths"], task["main"]
        if split == VALID:
            tuned_at = dict.fromkeys((task["T"], main))
            both = [self.measure(model, condition, T, split, device) for T in tuned_at]
            return {name: sum(one[name] for one in both) / len(both) for name in ("accuracy", "bits")}
        by_length = {T: self.measure(model, condition, T, split, device) for T in lengths}
        scores = dict(by_length[main])
        return scores | {f"T = {T:,}": one["accuracy"] for T, one in by_length.items()}

    def measure(
        self, model: nn.Module, condition: Condition, steps: int, split: str, device: torch.device
    ) -> dict[str, float]:
        """Return accuracy and cross-entropy in bits on new sequences, the same for every model."""
        problem, late = self.problem(condition), condition.task["late"]
        total = self.settings.valid if split == VALID else self.settings.test
        name = json.dumps([problem.name, split, steps]).encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:7], "little")
        x, y = problem.draw(torch.Generator(device).manual_seed(seed), total, steps, split)
        first = find_late(steps, late)
        most = max(1, SCORED[device.type] // (steps * max(problem.symbols, MIN_WIDTH)))
        hits, nats, asked = torch.zeros(3, dtype=torch.double, device=device).unbind()
        for one, labels in zip(x.split(most), y[:, first:].split(most), strict=True):
            scores = model(one)[:, first:]
            hits = hits + (scores.argmax(-1) == labels).sum()
            nats = nats + F.cross_entropy(scores.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
            asked = asked + (labels != IGNORE).sum()
        count = max(1.0, float(asked))
        return {"accuracy": float(hits) / count, "bits": float(nats) / count / math.log(2)}

    def count_answers(self, condition: Condition) -> int | None:
        task = condition.task
        return count_labels(task["problem"], self.settings.test, task["main"], task["late"])

    def trivial(self, condition: Condition) -> float:
        return self.problem(condition).chance

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        blocks = list(super().blocks(rows))
        for c in self.settings.conditions:
            lengths = c.task.get("lengths", ())
            curves = []
            for g in groups(rows):
                runs = [t.scores for t in g.trials if not t.failed]
                if g.condition == c.name and runs and len(lengths) > 1:
                    values = [[run[f"T = {T:,}"] for run in runs] for T in lengths]
                    curves.append(draw_curve(g.model, [float(T) for T in lengths], values))
            if curves:
                title, note = (
                    f"{c.name}: accuracy against length",
                    f"trained at {c.task['T']} steps; range of all seeds",
                )
                blocks.append(Chart(title, "test length", "accuracy", curves, log_x=True, note=note))
        return blocks

    def compare_models(self, rows: Sequence[Trial]) -> list[Contest]:
        """Compare the reference model of each condition with the others."""
        by_reference = self._by_reference()
        answers = [
            contests([t for t in rows if t.condition in names], self.metrics[0], reference, self.find_answers)
            for reference, names in by_reference.items()
        ]
        return [contest for mine in answers for contest in mine]

    def _by_reference(self) -> dict[str, list[str]]:
        """Return the conditions of each reference model."""
        names: dict[str, list[str]] = {}
        for c in self.settings.conditions:
            names.setdefault(c.task.get("against", self.against), []).append(c.name)
        return names

    def verdict(self, rows: Sequence[Trial]) -> str:
        apart, first = self.compare_models(rows), self.metrics[0]
        texts = [
            format_contests([c for c in apart if c.condition in names], reference, first)
            for reference, names in self._by_reference().items()
        ]
        return " ".join([rank_models(self, rows), *filter(None, texts)])


def describe_conditions(study: Trials[Any], about: dict[str, str]) -> str:
    """Describe the problems of the conditions that a study has, and their sizes if they have their own."""
    parts = []
    for c in study.settings.conditions:
        size = f" ({c.task['budget']:,} parameters)" if "budget" in c.task else ""
        T, main = c.task["T"], c.task["main"]
        lengths = (
            f"{T} steps"
            if main == T
            else f"trained at {'up to ' * bool(c.task.get('grows'))}{T} steps, tested at {main}"
        )
        late = "" if c.task["late"] == 1 else f", scored in the last 1/{c.task['late']} of them"
        parts.append(f"{c.name}: {about[c.task['problem']]}; {lengths}{late}{size}")
    return ". ".join(parts) + "."


def rank_models(study: Trials[Any], rows: Sequence[Trial]) -> str:
    """Return the means of all models per condition, best first; they are exploratory."""
    first, parts = study.metrics[0], []
    for c in study.settings.conditions:
        means = [(g.summary(first.name).mean, g.model) for g in groups(rows) if g.condition == c.name]
        known = sorted(((m, name) for m, name in means if m is not None), reverse=not first.lower)
        lost = [name for m, name in means if m is None]
        listed = [f"{name} {value:.3g}" for value, name in known] + [f"{name} failed" for name in lost]
        parts += [f"{c.name}: {', '.join(listed)}"] if listed else []
    return f"Exploratory, {study.settings.seeds} seeds; {first.name}: {'; '.join(parts)}."


def draw_curve(name: str, x: list[float], values: list[list[float]]) -> Curve:
    """Return the mean of the seeds at each place, and their range."""
    return Curve(name, x, [sum(v) / len(v) for v in values], [min(v) for v in values], [max(v) for v in values])


class SymbolReader(nn.Module):
    """Read symbols (B, T) as one-hot rows and classify after every step: (B, T, classes)."""

    symbols: Tensor

    def __init__(self, layer: nn.Module, width: int, symbols: int, classes: int, precision: str) -> None:
        super().__init__()
        self.layer, self.head, self.precision = layer, nn.Linear(width, classes), precision
        self.register_buffer("symbols", torch.arange(symbols), persistent=False)

    def one_hot(self, x: Tensor) -> Tensor:
        return torch.eq(x.unsqueeze(-1), self.symbols).to(self.head.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        with use_precision(self.precision, self.layer, x.device):
            y, _ = self.layer(self.one_hot(x))
        return self.head(y.to(self.head.weight.dtype)).float()
