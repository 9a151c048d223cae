"""Settings of studies that train models: conditions, models and the tuning grid."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypedDict

from seqloom.core.errors import UserError

VALID, TEST = "valid", "test"  # the split that a trial is scored on: for tuning, or for the result
TUNING = 1000  # first seed of tuning; results use 0, 1, 2, ...
FINALISTS = 2000  # first seed of the second round of tuning
LADDER = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # learning rates that a grid may be widened to


@dataclass(frozen=True)
class Condition:
    """One condition of the experiment: a task and its training steps."""

    name: str
    steps: int  # training steps
    task: dict[str, Any] = field(default_factory=dict)  # interpreted by the study
    models: tuple[str, ...] = ()  # only these; (): all models of the settings
    tuned_at: str = ""  # earlier conditions, separated by ";", of which the best tuning is reused; "": tune here
    after: str = ""  # an earlier condition whose trained model is trained further
    lower: int = 0  # learning rates below the chosen one of `tuned_at`, in steps of LADDER
    # Whether tuning may add rates to the grid and a second round here, if the settings say so; False where it takes
    # too long.
    widens: bool = True
    seeds: int = 0  # maximum number of seeds; 0: the number in the settings
    seeds_of: dict[str, int] = field(default_factory=dict)  # maximum number of seeds by model

    @property
    def sources(self) -> tuple[str, ...]:
        """The earlier conditions whose learning rate and start a model takes over."""
        return tuple(filter(None, (self.tuned_at or self.after).split(";")))


def check_sources(trained: Sequence[tuple[Condition, Sequence[str]]]) -> None:
    """Check that every model of a condition is trained under one that the condition builds on.

    Args:
        trained: The conditions in their order, each with its models.

    Raises:
        UserError: If one is not.
    """
    seen: dict[str, Sequence[str]] = {}
    for c, models in trained:
        for model in models if c.sources else ():
            if not any(model in seen.get(earlier, ()) for earlier in c.sources):
                earlier = " or ".join(map(repr, c.sources))
                raise UserError(f"condition {c.name!r} builds on {earlier}, where {model!r} is not trained")
        seen[c.name] = models


def find_next_rates(rates: Set[float], edge: float | None) -> set[float]:
    """Return the rates of LADDER beyond these, if `edge`, the best of them, is the lowest or the highest one."""
    if edge is None:
        return set()
    lower = [lr for lr in LADDER if lr < edge][-1:] if edge == min(rates) else []
    higher = [lr for lr in LADDER if lr > edge][:1] if edge == max(rates) else []
    return {*lower, *higher}


class ConditionOptions(TypedDict, total=False):
    """The fields of a Condition that have defaults and are no task."""

    models: tuple[str, ...]
    tuned_at: str
    after: str
    lower: int
    widens: bool
    seeds: int


@dataclass(frozen=True)
class TrialSettings:
    """Settings of a study of trials. Each model is tuned over the grid `lrs` x `starts`."""

    conditions: tuple[Condition, ...]
    models: tuple[str, ...]
    seeds: int = 5
    budget: int = 50_000  # trained parameters that hidden sizes are chosen for: a GRU with h = 128
    hidden: int = 0  # if not 0, the hidden size of every model
    lrs: tuple[float, ...] = (1e-3, 3e-3)
    starts: tuple[str, ...] = ("default", "chrono")
    batch: int = 64
    valid: int = 1_000
    test: int = 10_000
    together: int = 24  # trainings that share a GPU
    effort: float = 1.0  # fraction of the training steps
    tuning: float = 1.0  # fraction of a condition's steps used for tuning
    tuning_seeds: int = 1  # trainings per setting while tuning; their mean decides
    widen: bool = False  # if the best learning rate of a model is at the edge of the grid, try the next for all models
    widen_by: float = 0.0  # ... if it is better than all inner ones by at least this
    constant_rate: bool = False  # instead of warm-up and cosine decay
    precision: str = "natural"  # on a GPU: "natural" (AttnRNN and Transformers in bfloat16), "bfloat16", "float32"
    finalists: int = 0  # best settings of each model that are tuned in a second round, with all steps; 0: no such round
    finalist_seeds: int = 0  # trainings per setting in the second round; 0: `tuning_seeds`

    def count_second_round(self, condition: Condition) -> int:
        """Return the number of trainings of one model in the second round of tuning."""
        return self.finalists * (self.finalist_seeds or self.tuning_seeds) if condition.widens else 0


@dataclass(frozen=True)
class Spec:
    """One training and the split that it is scored on: "valid" for tuning."""

    condition: Condition
    model: str
    lr: float
    start: str
    seed: int
    split: str

    def __str__(self) -> str:
        return f"{self.condition.name}, {self.model}, {'tuning' if self.split == VALID else f'seed {self.seed}'}"


# Settings of exploratory studies; each names its conditions, models and parameters with `replace`.
EXPLORATORY = TrialSettings(
    (),
    (),
    seeds=3,
    lrs=(1e-3, 3e-3, 1e-2),
    starts=("default",),
    valid=1_024,
    test=2_048,
    tuning=0.5,
    tuning_seeds=2,
    widen=True,
    widen_by=0.01,
    precision="float32",
)
EXPLORATORY_QUICK = TrialSettings(
    (),
    (),
    seeds=2,
    budget=6_000,
    lrs=(3e-3, 1e-2, 3e-2),
    starts=("default",),
    batch=32,
    valid=128,
    test=512,
    tuning=0.5,
    widen=True,
    widen_by=0.02,
    precision="float32",
)
