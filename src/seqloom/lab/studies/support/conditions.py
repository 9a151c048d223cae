"""What a study of trainings is told: its conditions, its models, and the grid that each is tuned over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

VALID, TEST = "valid", "test"  # what a trial is scored on: to tune, or for the result
TUNING = 1000  # the first seed of tuning; results have 0, 1, 2 ..
LADDER = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # learning rates that a grid may be widened to


@dataclass(frozen=True)
class Condition:
    """One column of the experiment: a task, and how long it is trained for."""

    name: str
    steps: int  # of training
    task: dict[str, Any] = field(default_factory=dict)  # what the study makes of it
    models: tuple[str, ...] = ()  # these alone; () all of the settings'
    tuned_at: str = ""  # an earlier condition, whose choice is taken over; "" tunes here
    after: str = ""  # an earlier condition, whose trained model goes on here


@dataclass(frozen=True)
class Settings:
    """What every such study can be told. `lrs` x `starts` is the grid that each model is tuned over."""

    conditions: tuple[Condition, ...]
    models: tuple[str, ...]
    seeds: int = 5
    budget: int = 50_000  # trained parameters, for which the hidden size is solved: a GRU's with h = 128
    hidden: int = 0  # or this size for every model
    lrs: tuple[float, ...] = (1e-3, 3e-3)
    starts: tuple[str, ...] = ("default", "chrono")
    batch: int = 64
    valid: int = 1_000
    test: int = 10_000
    together: int = 24  # trainings that share a GPU
    effort: float = 1.0  # of the training steps
    tuning: float = 1.0  # of a condition's steps, while its models are tuned
    tuning_seeds: int = 1  # trainings of every setting while tuning, whose mean decides
    widen: bool = (
        False  # where the best learning rate of a model is the lowest or highest: try the next, for all models
    )
    precision: str = "natural"  # on a GPU: "natural" (AttnRNN and Transformers in bfloat16), "bfloat16", "float32"


@dataclass(frozen=True)
class Spec:
    """One training, and the split on which it is scored: "valid" where it serves to tune."""

    condition: Condition
    model: str
    lr: float
    start: str
    seed: int
    split: str

    def __str__(self) -> str:
        return f"{self.condition.name}, {self.model}, {'tuning' if self.split == VALID else f'seed {self.seed}'}"
