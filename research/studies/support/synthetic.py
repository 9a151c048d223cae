"""Trials on synthetic problems that are generated on the device during training."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from research.studies.support.conditions import VALID, Condition, TrialSettings
from research.studies.support.contenders import Reader, layer
from research.studies.support.trials import Draw, Tensors, Trials
from seqloom.lab.data.synthetic.task import Problem
from seqloom.layers.recurrent.layer import Recurrent

ROWS = {"cpu": 250, "cuda": 1_000}  # rows scored at once, at most
STEPS = 5_000_000  # time steps of all rows scored at once, at most

S = TypeVar("S", bound=TrialSettings)


@dataclass(frozen=True)
class Shape:
    """Inputs and outputs of a model for a problem; see `Reader`."""

    inputs: int
    outputs: int
    span: int  # steps that the model has to remember
    every: bool = False
    symbols: tuple[int, int] | None = None


class SyntheticTrials(Trials[S]):
    """Train on synthetic data. A subclass defines `problem`, `shape`, `loss` and `measure`."""

    def problem(self, condition: Condition) -> Problem:
        raise NotImplementedError

    def shape(self, condition: Condition) -> Shape:
        raise NotImplementedError

    def measure(self, model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the mean of every metric over these rows, by name."""
        raise NotImplementedError

    def layer(self, model: str, inputs: int, hidden: int, start: str, span: int) -> Recurrent:
        return layer(model, inputs, hidden, start, span)

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        form = self.shape(condition)
        inner = self.layer(model, form.inputs, hidden, start, form.span)
        return Reader(inner, form.outputs, form.every, form.symbols)

    def draw(self, condition: Condition) -> Draw:
        problem, rows = self.problem(condition), self.settings.batch
        return lambda random, device: _make_batch(problem, random, rows, device)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        """Score new examples, the same for every model."""
        problem = self.problem(condition)
        total = self.settings.valid if split == VALID else self.settings.test
        name = json.dumps([split, condition.task], sort_keys=True).encode()
        seed = int.from_bytes(hashlib.sha256(name).digest()[:7], "little")
        random = torch.Generator(device).manual_seed(seed)
        sums: dict[str, Tensor] = {}
        most = max(1, min(ROWS[device.type], STEPS // problem.steps))
        for begin in range(0, total, most):
            rows = min(most, total - begin)
            for key, mean in self.measure(model, *_make_batch(problem, random, rows, device)).items():
                sums[key] = sums.get(key, torch.zeros((), device=device)) + rows * mean.double()
        return {key: float(value) / total for key, value in sums.items()}


def _make_batch(problem: Problem, random: torch.Generator, rows: int, device: torch.device) -> Tensors:
    with torch.device(device):  # so that the problem creates its tensors there
        batch = problem.make(random, rows)
    return batch.x, batch.y
