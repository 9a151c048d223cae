"""Which step may look at which, when not all may look at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seqloom.core.errors import UserError


@dataclass(frozen=True)
class Pattern:
    """The union of three sets of pairs (i, j) of a query and a key.

        local    |i - j| <= window
        global   i in G or j in G                              G = global_steps
        random   j in one of `random_blocks` blocks drawn for the block of i

    The first two are Longformer's (Beltagy et al. 2020, arXiv 2004.05150), all three BigBird's
    (Zaheer et al. 2020, arXiv 2007.14062). `block` steps are computed together; it matters to the
    speed, and to the random blocks. They are drawn once for a length, from `seed`.
    """

    window: int = 128
    global_steps: Sequence[int] = field(default=())
    random_blocks: int = 0
    block: int = 0  # 0: a window, at least 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 0 or self.random_blocks < 0 or self.block < 0:
            raise UserError(f"a Pattern's window, random_blocks and block are at least 0, got {self}")
        steps = tuple(sorted(set(self.global_steps)))
        if steps and steps[0] < 0:
            raise UserError(f"global_steps are counted from 0, got {steps[0]}")
        object.__setattr__(self, "global_steps", steps)
        object.__setattr__(self, "block", self.block or max(16, self.window))

    def check_causal(self) -> None:
        """What a state of constant size can remember."""
        if self.random_blocks:
            raise UserError("random_blocks need the whole sequence; a causal attention takes random_blocks=0")
        if list(self.global_steps) != list(range(len(self.global_steps))):
            raise UserError(
                f"global_steps of a causal attention must be the first ones (0, 1, ..), got {self.global_steps}"
            )

    def blocks(self, count: int, causal: bool) -> list[list[int]]:
        """For each of `count` blocks of queries its blocks of keys, the same number for all.

        One that is not there has a number below 0 or from `count` on.
        """
        reach = -(-self.window // self.block)
        near = [list(range(n - reach, n + 1 + reach * (not causal))) for n in range(count)]
        if not self.random_blocks:
            return near
        draw = random.Random(self.seed)
        return [blocks + self._drawn(draw, set(range(count)) - set(blocks)) for blocks in near]

    def _drawn(self, draw: random.Random, others: set[int]) -> list[int]:
        blocks = draw.sample(sorted(others), min(self.random_blocks, len(others)))
        return blocks + [-1] * (self.random_blocks - len(blocks))

    def mask(self, steps: int, causal: bool = False) -> Tensor:
        """The pairs as a matrix (T, T), True where a query may look."""
        at = torch.arange(steps)
        i, j = at.unsqueeze(1), at.unsqueeze(0)
        pairs = (i - j).abs() <= self.window
        if self.random_blocks:
            drawn = torch.zeros_like(pairs)
            reach = 1 + 2 * -(-self.window // self.block)
            for n, blocks in enumerate(self.blocks(-(-steps // self.block), causal)):
                for m in (m for m in blocks[reach:] if m >= 0):
                    drawn[n * self.block :, m * self.block : (m + 1) * self.block][: self.block] = True
            pairs = pairs | drawn
        for g in self.global_steps:
            pairs = pairs | (i == g) | (j == g)
        return pairs & (j <= i) if causal else pairs
