"""The learning rate over time."""

from __future__ import annotations

import math

from seqloom.lab.training.settings import TrainSettings


class Schedule:
    """Of the highest learning rate, the share at each step s of S: up in a line for w steps, then

    cosine     (1 + cos(pi (s - w) / (S - w))) / 2
    step       decay ^ floor(validations / decay_after)
    plateau    decay ^ k, k counting `decay_after` validations in a row without progress
    constant   1
    """

    def __init__(self, settings: TrainSettings, steps: int) -> None:
        self.kind, self.decay, self.after = settings.schedule, settings.decay, settings.decay_after
        self.steps, self.warm = steps, math.ceil(settings.warmup * steps)
        self.falls, self.waited = 0, 0

    def share(self, step: int) -> float:
        if step < self.warm:
            return (step + 1) / self.warm
        if self.kind == "cosine":
            done = (step - self.warm) / max(1, self.steps - self.warm)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        return self.decay**self.falls

    def record_validation(self, progress: bool) -> None:
        """One more validation; whether it was the best so far."""
        if self.kind in ("cosine", "constant"):
            return
        self.waited = 0 if progress and self.kind == "plateau" else self.waited + 1
        if self.waited >= self.after:
            self.falls, self.waited = self.falls + 1, 0

    def state(self) -> dict[str, int]:
        return {"falls": self.falls, "waited": self.waited}

    def restore(self, state: dict[str, int]) -> None:
        self.falls, self.waited = state["falls"], state["waited"]
