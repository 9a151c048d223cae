"""What state.json of a checkpoint must hold for a training to resume from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from seqloom.lab.files import sealed
from seqloom.lab.files.checkpoint import FACTS

Count = Annotated[int, Field(ge=0)]
STRICT = ConfigDict(strict=True, extra="ignore")


class ScheduleFacts(BaseModel):
    """The state of a schedule."""

    model_config = STRICT

    decays: Count
    waited: Count


class ResumeFacts(BaseModel):
    """The position, schedule and stepper of a training; numbers may be NaN where a training diverged."""

    model_config = STRICT

    step: Count
    epoch: Count
    batch: Count
    seconds: float
    validated: Count
    waited: Count
    best: float | None
    best_loss: float | None
    loss: float
    targets: Count
    finished: str | None
    schedule: ScheduleFacts
    parts: Annotated[int, Field(ge=1)]
    scaler: dict[str, float]
    averaged: Count
    skipped: Count = 0
    skipped_in_a_row: Count = 0
    averaged_checkpoints: Count = 0
    metrics: Count


def check_resume(facts: dict[str, Any], folder: Path) -> None:
    """Check what a training resumes from.

    Raises:
        DamagedError: If a value is missing, or cannot have been written by a training.
    """
    with sealed.interpret(folder / FACTS):
        ResumeFacts.model_validate(facts)
