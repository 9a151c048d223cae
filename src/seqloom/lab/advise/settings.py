"""What a candidate would be trained with on these data, and the commands that do it."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from seqloom.lab.advise.facts import Facts
from seqloom.lab.compare.candidates import Candidate
from seqloom.lab.compare.sizes import EMBEDDING, default_parameters, fit_size
from seqloom.lab.data.task import Task
from seqloom.lab.training.settings import TrainSettings

LINEAR = "linear"  # in place of a layer's name: no sequence model at all
FEW, SMALL_BATCH = 1_000, 16  # up to so many examples, smaller batches: more steps an epoch
STEPS = 4_000  # that a training should have, in 3 to 100 epochs
EPOCHS = (3, 100)


def settings(task: Task, facts: Facts, candidate: Candidate) -> TrainSettings:
    """Width by the parameters that `seqloom compare` gives to each model, the learning rate it tries first."""
    batch = SMALL_BATCH if facts.examples is not None and facts.examples <= FEW else 32
    length: dict[str, Any] = {"steps": STEPS}
    if facts.examples is not None:
        each = _batches(task, facts, batch)
        length = {"epochs": max(EPOCHS[0], min(EPOCHS[1], round(STEPS / each)))}
    return TrainSettings(
        model=candidate.model,
        layers=candidate.layers,
        hidden=fit_size(task, candidate, default_parameters(task)).hidden,
        embedding=EMBEDDING,
        lr=candidate.rates[0],
        batch=batch,
        **length,
    )


def total_steps(task: Task, facts: Facts, settings: TrainSettings) -> int:
    """Of the whole training."""
    if settings.steps is not None or settings.epochs is None:
        return settings.steps or STEPS
    return settings.epochs * _batches(task, facts, settings.batch or 32)


def _batches(task: Task, facts: Facts, batch: int) -> int:
    return max(1, task.count("train", batch=batch) or math.ceil((facts.examples or 1) / batch))


def train_command(data: str, options: Mapping[str, Any], settings: TrainSettings) -> str:
    """Only what differs from what `seqloom train` does by itself."""
    usual = TrainSettings().model_dump()
    every = settings.model_dump()  # the model's name comes first
    said = {name: value for name, value in every.items() if value != usual[name] or name == "model"}
    return shlex.join(["seqloom", "train", data, *flags(options), *flags(said)])


def compare_command(data: str, options: Mapping[str, Any], names: list[str]) -> str:
    """Baselines are always part of a comparison, so `linear` need not be named."""
    models = ["--models", ",".join(names)] if names else []
    return shlex.join(["seqloom", "compare", data, *flags(options), *models])


def flags(options: Mapping[str, Any]) -> list[str]:
    """Options as a command line has them."""
    found: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else f"--no-{flag[2:]}")
        else:
            found += [flag, ",".join(value) if isinstance(value, tuple) else f"{value}"]
    return found
