"""What a person sees while a model trains: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, Self

from seqloom.lab import console

MINUTE = 60.0  # seconds between lines where there is no terminal
SOON = 5.0  # and after which a validation is worth one
BLINK = 0.2


class ProgressReport:
    """Loss, metric, time steps a second, time left."""

    def __init__(self, heard: bool, total: int) -> None:
        self.heard, self.total = heard, max(1, total)
        self.began = self.told = self.blinked = time.perf_counter()
        self.done = self.steps = 0
        self.metric = self.text = ""

    def __enter__(self) -> Self:
        self.stack = ExitStack()
        if self.heard:
            self.move, self.tell = self.stack.enter_context(console.show_progress(self.total))
        return self

    def __exit__(self, *_: Any) -> None:
        self.stack.close()

    def report_step(self, where: str, loss: float, steps: int) -> None:
        if not self.heard:
            return
        self.done, self.steps = self.done + 1, self.steps + steps
        now = time.perf_counter()
        if now - self.blinked > BLINK or not self.text:
            spent = max(now - self.began, 1e-9)
            self.text = f"{where}  loss {loss:.4f}{self.metric}  {self.steps / spent:,.0f} steps/s"
            self.blinked = now
            if now - self.told > MINUTE:
                left = spent / self.done * max(0, self.total - self.done)
                self._say(f"{self.text}  {_clock(left)} left")
        self.move(self.text)

    def report_validation(self, where: str, values: dict[str, float], metric: str) -> None:
        if not self.heard:
            return
        if metric in values:
            self.metric = f"  {metric} {values[metric]:.4f}"
        if time.perf_counter() - self.told > SOON:
            self._say(f"{where}: loss {values['train_loss']:.4f}{self.metric}")

    def _say(self, text: str) -> None:
        self.tell(text)
        self.told = time.perf_counter()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
