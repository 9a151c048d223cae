"""Irregular samples: does a state in continuous time use the gaps better than a GRU that reads them?"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from research.studies.support.conditions import EXPLORATORY, EXPLORATORY_QUICK, VALID, Condition, TrialSettings
from research.studies.support.contenders import FUSED, MULTIPLE, layer, starts
from research.studies.support.epochs import use_precision
from research.studies.support.metric import ERROR, TrialMetric
from research.studies.support.outcome import Trial
from research.studies.support.symbol_trials import rank_models
from research.studies.support.trials import Draw, Tensors, Trials

ODE, GAPS = "ode_gru", " + gaps"  # GAPS: the model reads the time since the last sample as a feature
MODELS = (ODE, "gru + gaps", "gru", "attn_rnn + gaps")
SUBSTEPS = 2  # of the differential equation in each gap
MEAN_GAP, LONGEST_GAP = 0.5, 3.0
SLOWEST, FASTEST = 0.5, 2.0  # radians per unit of time
HIDDEN_SHARE = 0.5  # of the samples in the second half, whose value is asked


def wave(name: str, steps: int, samples: int, irregular: bool) -> Condition:
    return Condition(name, steps, {"samples": samples, "irregular": irregular})


class Irregular(Trials[TrialSettings], name="irregular"):
    """ODE-GRU against a GRU that reads the gaps, on samples of waves at irregular times."""

    metrics = (TrialMetric("MSE", ERROR, log=True), TrialMetric("MAE", ERROR))
    against = ODE
    full = replace(
        EXPLORATORY,
        conditions=(wave("irregular gaps", 1_000, 16, True), wave("equal gaps", 1_000, 16, False)),
        models=MODELS,
        budget=30_000,
        test=4_096,
        widen_by=0.001,
    )
    quick = replace(
        EXPLORATORY_QUICK,
        conditions=(wave("irregular gaps", 400, 16, True),),
        models=MODELS,
        budget=2_000,
        lrs=(1e-2, 3e-2, 1e-1),
        valid=256,
        test=1_000,
    )

    def build(self, model: str, hidden: int, start: str, condition: Condition) -> nn.Module:
        cell, reads_gaps = model.removesuffix(GAPS), model.endswith(GAPS)
        samples = condition.task["samples"]
        settings = {"substeps": SUBSTEPS} if cell == ODE else {}
        inner = layer(cell, 2 + reads_gaps, hidden, start, samples, **settings)
        return SampleReader(inner, hidden, reads_gaps, cell == ODE, self.settings.precision)

    def multiple(self, model: str) -> int:
        return FUSED if self.device == "cuda" and "attn_rnn" in model else MULTIPLE

    def can_stack(self, model: str) -> bool:
        return model == ODE

    def grid(self, model: str) -> list[tuple[float, str]]:
        s = self.settings
        return [(lr, start) for lr in s.lrs for start in starts(model.removesuffix(GAPS), s.starts)]

    def draw(self, condition: Condition) -> Draw:
        task, batch = condition.task, self.settings.batch
        return lambda random, _: draw_waves(random, batch, task["samples"], task["irregular"])

    def loss(self, model: nn.Module, batch: Tensors) -> Tensor:
        values, known, gaps = batch
        asked = 1 - known
        errors = (model(values, known, gaps) - values).square() * asked
        return errors.sum() / asked.sum().clamp(min=1)

    def score(self, model: nn.Module, condition: Condition, split: str, device: torch.device) -> dict[str, float]:
        task, total = condition.task, self.settings.valid if split == VALID else self.settings.test
        name = json.dumps([split, task], sort_keys=True).encode()
        random = torch.Generator(device).manual_seed(int.from_bytes(hashlib.sha256(name).digest()[:7], "little"))
        values, known, gaps = draw_waves(random, total, task["samples"], task["irregular"])
        errors = (model(values, known, gaps) - values).double()[known == 0]
        return {"MSE": float(errors.square().mean()), "MAE": float(errors.abs().mean())}

    def trivial(self, condition: Condition) -> float:
        return 0.5  # the mean of a sine is 0, its mean square 1 / 2

    def caption(self) -> str:
        return (
            f"{super().caption()}\nsin(w t + p), w from {SLOWEST} to {FASTEST}, any p, sampled at gaps of {MEAN_GAP} "
            f"on average: exponential, at most {LONGEST_GAP:g}, or all equal. In the second half the value of every "
            f"other sample, at random, is hidden and asked. {ODE}: the state moves during the gap, "
            f"in {SUBSTEPS} substeps; + gaps: the gap is a feature of the input; gru: does not know the gaps. "
            "trivial: always 0."
        )

    def verdict(self, rows: Sequence[Trial]) -> str:
        return f"{rank_models(self, rows)} {super().verdict(rows)}"


def draw_waves(random: torch.Generator, rows: int, samples: int, irregular: bool) -> Tensors:
    """Draw waves at sampled times.

    Returns:
        values: (rows, samples).
        known: (rows, samples), 1 where a model may read the value, 0 where it is asked.
        gaps: (rows, samples), the time since the sample before.
    """
    at = random.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random, device=at)

    gaps = torch.full((rows, samples), MEAN_GAP, device=at)
    if irregular:
        gaps = (-MEAN_GAP * torch.log1p(-uniform(rows, samples))).clamp(max=LONGEST_GAP)
    speed = SLOWEST + (FASTEST - SLOWEST) * uniform(rows, 1)
    values = torch.sin(speed * gaps.cumsum(1) + 2 * math.pi * uniform(rows, 1))
    late = torch.arange(samples, device=at) >= samples // 2
    known = 1 - (late & (uniform(rows, samples) < HIDDEN_SHARE)).float()
    return values, known, gaps


class SampleReader(nn.Module):
    """Estimate the value of every sample from the known ones before it and its time: (B, T)."""

    def __init__(self, layer: nn.Module, width: int, reads_gaps: bool, moves: bool, precision: str) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 1)
        self.reads_gaps, self.moves, self.precision = reads_gaps, moves, precision

    def forward(self, values: Tensor, known: Tensor, gaps: Tensor) -> Tensor:
        features = [values * known, known, *([gaps] if self.reads_gaps else [])]
        with use_precision(self.precision, self.layer, values.device):
            x = torch.stack(features, -1)
            y, _ = self.layer(x, timespans=gaps) if self.moves else self.layer(x)
        return self.head(y.to(self.head.weight.dtype)).squeeze(-1)
