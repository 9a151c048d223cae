"""Trials on examples from files, kept on the device; weights are saved after every round of training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.studies.data.examples import LabelledRows
from research.studies.support.conditions import TEST, VALID, Condition, TrialSettings
from research.studies.support.contenders import natural
from research.studies.support.metric import ACCURACY, TrialMetric
from research.studies.support.outcome import Group, Trial, groups
from research.studies.support.trials import Draw, Tensors, Trials
from seqloom.lab.report.page import Chart, Curve, PageBlock
from seqloom.layers.transformer.layer import Transformer

STEPS = {"cpu": 1 << 15, "cuda": 1 << 19}  # time steps scored at once: cuDNN stores four gates for each
TRAIN = "train"

S = TypeVar("S", bound=TrialSettings)


class SnapshotModel(nn.Module):
    """A model that saves its weights on the device at the end of each of `rounds` equal parts of `steps` steps."""

    def __init__(self, model: nn.Module, rounds: int, steps: int, precision: str = "natural") -> None:
        super().__init__()
        self.model, self.rounds, self.steps, self.precision = model, rounds, steps, precision
        self.kept: list[Tensor] = []  # (rounds, ...) per weight, allocated when training starts

    def keep(self, done: int) -> None:
        """Save the weights if a round ends after `done` steps; call before every step."""
        weights = [p.detach() for p in self.model.parameters()] if not self.kept or self._ends_at(done) else []
        if not self.kept:
            self.kept = [p.new_zeros(self.rounds, *p.shape) for p in weights]
        for place in self._ends_at(done):
            for copies, p in zip(self.kept, weights, strict=True):
                copies[place].copy_(p)

    def _ends_at(self, done: int) -> range:
        """Return the rounds that end after `done` steps: (k + 1) * steps // rounds == done."""
        first, last = (-(-at * self.rounds // self.steps) - 1 for at in (done, done + 1))
        return range(max(0, first), min(last, self.rounds))

    def finish(self) -> None:
        """Save the final weights as those of the last round."""
        for copies, p in zip(self.kept, self.model.parameters(), strict=True):
            copies[-1].copy_(p.detach())

    def go_to(self, place: int) -> None:
        """Load the weights of a round."""
        for copies, p in zip(self.kept, self.model.parameters(), strict=True):
            p.data.copy_(copies[place])

    def forward(self, *inputs: Tensor) -> Tensor:
        with use_precision(self.precision, self.model, inputs[0].device):
            return self.model(*inputs).float()


def use_precision(precision: str, model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context with the precision of the settings; on a CPU everything is float32."""
    if precision == "natural":
        return fast(model, device)
    low = precision == "bfloat16" and device.type == "cuda"
    return torch.autocast(device.type, torch.bfloat16, enabled=low)


def fast(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context like `natural`, in which Transformers also compute in bfloat16 on a GPU."""
    if device.type == "cuda" and any(isinstance(part, Transformer) for part in model.modules()):
        return torch.autocast("cuda", torch.bfloat16)
    return natural(model, device)


class Epochs(Trials[S]):
    """Trials that are trained for several rounds over real data and scored after each.

    A subclass defines `examples` and `network`; the task of a condition has "rounds" and "train" (rows).
    The round with the best score on "valid" is the result, and only this round is tested. Under the protocol "paper"
    the test set chooses the round, as in the articles.
    """

    metrics: ClassVar[tuple[TrialMetric, ...]] = (
        TrialMetric("accuracy", ACCURACY),
        TrialMetric("last round", ACCURACY),
    )

    def examples(self, condition: Condition, split: str) -> LabelledRows:
        """Return the examples of "train", "valid" or "test"; called once for each."""
        raise NotImplementedError

    def network(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        """Build a model from (x, lengths) to scores (B, classes)."""
        raise NotImplementedError

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        network = self.network(model, hidden, start, condition)
        return SnapshotModel(network, condition.task["rounds"], self.steps(condition), self.settings.precision)

    def draw(self, condition: Condition) -> Draw:
        data, batch = self._on(condition, TRAIN, torch.device(self.device)), self.settings.batch

        def draw(random: torch.Generator, device: torch.device) -> Tensors:
            rows = data.rows(torch.randint(len(data), (batch,), generator=random, device=device))
            return rows.x, rows.lengths, rows.y

        return draw

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        return F.cross_entropy(model(*batch[:-1]), batch[-1])

    def prepare(self, draw: Draw, model: nn.Module, random: torch.Generator, done: int) -> None:
        assert isinstance(model, SnapshotModel)
        model.keep(done)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        assert isinstance(model, SnapshotModel)
        model.finish()
        chosen_on = TEST if self.protocol == "paper" else VALID
        curve = [self._accuracy(model, k, condition, chosen_on, device) for k in range(model.rounds)]
        best = max(range(model.rounds), key=lambda k: curve[k])
        places = {"accuracy": best, "last round": model.rounds - 1}
        if split == chosen_on:
            there = dict(enumerate(curve))
        else:
            there = {k: self._accuracy(model, k, condition, split, device) for k in dict.fromkeys(places.values())}
        scores = {name: there[k] for name, k in places.items()}
        return scores | {f"round {k + 1}": value for k, value in enumerate(curve)}

    def _accuracy(
        self, model: SnapshotModel, place: int, condition: Condition, split: str, device: torch.device
    ) -> float:
        model.go_to(place)
        data, right = self._on(condition, split, device), torch.zeros((), device=device)
        count = max(1, STEPS[device.type] // data.x.shape[1])
        for begin in range(0, len(data), count):
            rows = data.part(begin, begin + count)
            right += (model(rows.x, rows.lengths).argmax(-1) == rows.y).sum()
        return float(right) / len(data)

    def count_answers(self, condition: Condition) -> int | None:
        return self.settings.test

    def _on(self, condition: Condition, split: str, device: torch.device) -> LabelledRows:
        """Return the examples on the device; they are read once."""
        held: dict[tuple[str, str], LabelledRows] = self.__dict__.setdefault("_held", {})
        if (condition.name, split) not in held:
            held[condition.name, split] = self.examples(condition, split).to(device)
        return held[condition.name, split]

    def epochs(self, condition: Condition, place: int) -> float:
        """Return the number of epochs until the end of a round."""
        batch = condition.task.get("batch", self.settings.batch)
        seen = self.steps(condition) * batch * (place + 1) / condition.task["rounds"]
        return float(seen / condition.task["train"])

    def blocks(self, rows: Sequence[Trial]) -> list[PageBlock]:
        blocks, read = list(super().blocks(rows)), "test" if self.protocol == "paper" else "validation"
        for c in self.settings.conditions:
            curves = [self._curve(c, g) for g in groups(rows) if g.condition == c.name]
            if any(curve.x for curve in curves):
                title = f"{c.name}: {read} accuracy during training"
                blocks.append(Chart(title, "epochs", "accuracy", curves, note="mean, lowest and highest seed"))
        return blocks

    def _curve(self, c: Condition, g: Group) -> Curve:
        runs = [t.scores for t in g.trials if not t.failed]
        places = range(c.task["rounds"] if runs else 0)
        values = [[run[f"round {k + 1}"] for run in runs] for k in places]
        x = [self.epochs(c, k) for k in places]
        return Curve(g.model, x, [sum(v) / len(v) for v in values], [min(v) for v in values], [max(v) for v in values])

    def caption(self) -> str:
        text = super().caption().replace("AttnRNN under bfloat16", "AttnRNN and Transformers under bfloat16")
        rounds = "result: the weights of the round that is best on validation rows; last round: the final weights"
        return f"{text}\n{rounds}; batches are sampled with replacement."
