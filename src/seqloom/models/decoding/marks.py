"""The ids that are no words."""

from __future__ import annotations

from dataclasses import dataclass

from seqloom.core.errors import UserError


@dataclass(frozen=True)
class Marks:
    """Ids that stand for the frame of a sequence: start, its words, stop, padding up to the batch's length."""

    padding: int = 0
    start: int = 1
    stop: int = 2

    def __post_init__(self) -> None:
        if len({self.padding, self.start, self.stop}) < 3 or min(self.padding, self.start, self.stop) < 0:
            raise UserError(f"padding, start and stop must be three different ids of at least 0, got {self}")
