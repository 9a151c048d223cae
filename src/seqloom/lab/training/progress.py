"""Progress of a training: a bar on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Self

from seqloom.lab import console

LINE_EVERY = 60.0  # seconds between lines without a terminal
VALIDATION_LINE_EVERY = 5.0  # minimum seconds between the lines of validations
REFRESH_EVERY = 0.2  # seconds between updates of the bar's text


class ProgressReport:
    """Reports loss, metric, time steps per second and remaining time; silent unless `enabled`."""

    def __init__(self, enabled: bool, total: int) -> None:
        self.enabled, self.total = enabled, max(1, total)
        self.began = self.reported = self.refreshed = time.perf_counter()
        self.done = self.steps = 0
        self.metric = self.text = ""

    def __enter__(self) -> Self:
        self.stack = ExitStack()
        if self.enabled:
            self.advance, self.report = self.stack.enter_context(console.show_progress(self.total))
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def report_step(self, where: str, loss: float, steps: int) -> None:
        if not self.enabled:
            return
        self.done, self.steps = self.done + 1, self.steps + steps
        now = time.perf_counter()
        if now - self.refreshed > REFRESH_EVERY or not self.text:
            spent = max(now - self.began, 1e-9)
            self.text = f"{where}  loss {loss:.4f}{self.metric}  {self.steps / spent:,.0f} steps/s"
            self.refreshed = now
            if now - self.reported > LINE_EVERY:
                left = spent / self.done * max(0, self.total - self.done)
                self._print(f"{self.text}  {_format_time(left)} left")
        self.advance(self.text)

    def report_validation(self, where: str, values: dict[str, float], metric: str) -> None:
        if not self.enabled:
            return
        if metric in values:
            self.metric = f"  {metric} {values[metric]:.4f}"
        if time.perf_counter() - self.reported > VALIDATION_LINE_EVERY:
            self._print(f"{where}: loss {values['train_loss']:.4f}{self.metric}")

    def _print(self, text: str) -> None:
        self.report(text)
        self.reported = time.perf_counter()


def _format_time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
