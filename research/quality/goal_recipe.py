"""What a training towards a goal is: its model, batches, loss, scores and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, ...]
Draw = Callable[[torch.Generator], Batch]


@dataclass(frozen=True)
class Training:
    """One training towards a goal.

    `draw` returns batches of one shape from the generator, or is a list of such functions with the share of the steps
    that use each: one for each range of lengths. `score` returns numbers of the "valid" or "test" split.
    """

    goal: str
    recipe: str
    seed: int
    build: Callable[[], nn.Module]  # called under manual_seed(seed)
    draw: Draw | Sequence[tuple[Draw, float]]
    loss: Callable[[nn.Module, Batch], Tensor]
    score: Callable[[nn.Module, str], dict[str, float]]
    steps: int
    lr: float
    settings: dict[str, Any] = field(default_factory=dict)  # only recorded
    warm_up: float = 0.05
    clip: float = 1.0
    weight_decay: float = 0.0
    ema: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    score_every: float = 0.1  # share of the training between validations
    grow: Callable[[float], None] | None = None  # called with the share of the training that is done
    final: Callable[[nn.Module], dict[str, Any]] | None = None  # replaces the test score
    keep: str = ""  # the validation metric by which the best weights are kept; empty: the last
    lower: bool = False  # whether less is better of it
    together: Callable[[list[nn.Module], str], dict[str, Any]] | None = None  # scores several seeds as one model

    def name_checkpoint(self) -> str:
        """Return a file name that no other training of this goal has."""
        words = "".join(c if c.isalnum() else "-" for c in f"{self.goal}-{self.recipe}")
        return f"{words}-{self.seed}.pt"

    def is_like(self, other: Training) -> bool:
        """Return whether the other differs in its seed alone."""
        return (self.goal, self.recipe) == (other.goal, other.recipe)


def draw_by_length(
    lengths: Tensor, bounds: Sequence[int], rows: int, take: Callable[[Tensor, int], Batch]
) -> list[tuple[Draw, float]]:
    """Return a function for each range of lengths that draws rows of it at random, and the share of its rows.

    Args:
        lengths: (N,), of the training rows.
        bounds: The longest row of each range, growing; the last holds all others.
        rows: Rows of a batch.
        take: Returns the rows at places (B,), cut to a length.
    """
    draws: list[tuple[Draw, float]] = []
    for first, last in zip((0, *bounds), bounds, strict=False):
        places = ((lengths > first) & (lengths <= last)).nonzero().squeeze(1)

        def draw(random: torch.Generator, places: Tensor = places, last: int = last) -> Batch:
            at = torch.randint(len(places), (rows,), generator=random, device=places.device)
            return take(places.index_select(0, at), last)

        if len(places):
            draws.append((draw, len(places) / len(lengths)))
    return draws
