"""The recipe of one small training: its model, batches, loss and learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Tensors = tuple[Tensor, ...]
LOSS_SPANS = 50  # spans of a training, each with its mean loss


@dataclass(frozen=True)
class Recipe:
    """Settings of AdamW with a linear warm-up and a cosine decay to zero, or with a constant learning rate."""

    steps: int
    lr: float
    warm_up: float = 0.1  # share of all steps
    clip: float = 1.0
    weight_decay: float = 0.0
    constant: bool = False

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.constant:
            return self.lr
        warm = max(1, round(self.warm_up * self.steps))
        if step < warm:
            return self.lr * (step + 1) / warm
        return self.lr * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, self.steps - warm)))


@dataclass(frozen=True)
class SmallTraining:
    """One training. `batch` draws from the generator, returns the same shapes each time, and must not synchronise."""

    name: str
    model: Callable[[], nn.Module]  # called under manual_seed(seed)
    batch: Callable[[torch.Generator, torch.device], Tensors]
    loss: Callable[[nn.Module, Tensors], Tensor]
    recipe: Recipe
    seed: int
    dtype: torch.dtype = torch.float32  # type of the weights
    # Called before every step with the model, the generator and the number of finished steps. It is not recorded with
    # the step, so work that is rarely due belongs here: every kernel of a recorded step costs time in each step.
    prepare: Callable[[nn.Module, torch.Generator, int], None] | None = None
    # Trainings with the same name here have models of one shape, the same loss and number of steps, and no dropout;
    # `torch.vmap` can run their models. On a GPU they are trained as one model.
    stack: str = ""


@dataclass(frozen=True)
class TrainedModel:
    """The result of one training."""

    name: str
    model: nn.Module | None
    losses: list[float]  # means over equal spans of steps
    seconds_per_step: float  # time of the group in which it ran
    failed: str = ""
    skipped: int = 0  # steps whose gradient was not finite; they changed nothing

    @classmethod
    def of(cls, training: SmallTraining, model: nn.Module, values: Sequence[float], seconds: float) -> TrainedModel:
        """Return the result of a training with these losses; NaN where a step was skipped."""
        steps = training.recipe.steps
        spans: list[list[float]] = [[] for _ in range(min(LOSS_SPANS, steps))]
        for i, value in enumerate(values):
            if math.isfinite(value):
                spans[i * len(spans) // steps].append(value)
        losses = [sum(span) / len(span) if span else math.nan for span in spans]
        skipped = steps - sum(map(len, spans))
        failed = "" if spans[-1] else f"the gradient was not finite in {skipped:,} of {steps:,} steps"
        return cls(training.name, model.eval(), losses, seconds / steps, failed, skipped)
