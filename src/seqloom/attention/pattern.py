"""Sparse attention patterns: which step attends to which."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seqloom.core.arguments import Checked
from seqloom.core.errors import UserError


@dataclass(frozen=True)
class Pattern(metaclass=Checked):
    """A sparse attention pattern: the union of three sets of pairs (i, j) of a query and a key.

        local    |i - j| <= window
        global   i in G or j in G                              G = global_steps
        random   j in one of `random_blocks` blocks drawn for the block of i

    The first two are Longformer's (Beltagy et al. 2020, arXiv 2004.05150), all three BigBird's (Zaheer et al. 2020,
    arXiv 2007.14062).

    Args:
        window: Steps to each side.
        global_steps: Positions that attend to all steps and that all steps attend to; for a causal layer the first
            ones (0, 1, ...).
        random_blocks: Number of random key blocks per query block; 0 for a causal layer.
        block: Number of steps computed together; also the size of random blocks. 0 chooses `window`, at least 16.
        seed: Seed of the random blocks, which depend on the length only.

    Raises:
        UserError: If a value is negative.

    Example:
        >>> seqloom.Pattern(window=1, global_steps=[0]).mask(4).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 1, 0],
                [1, 1, 1, 1],
                [1, 0, 1, 1]], dtype=torch.int32)
    """

    window: int = 128
    global_steps: Sequence[int] = field(default=())
    random_blocks: int = 0
    block: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.window < 0 or self.random_blocks < 0 or self.block < 0:
            raise UserError(f"window, random_blocks and block must be at least 0, got {self}")
        steps = tuple(sorted(set(self.global_steps)))
        if steps and steps[0] < 0:
            raise UserError(f"global_steps must be at least 0, got {steps[0]}")
        object.__setattr__(self, "global_steps", steps)
        object.__setattr__(self, "block", self.block or max(16, self.window))

    def check_causal(self) -> None:
        """Raise a UserError if a causal layer, whose state has a constant size, cannot use this pattern."""
        if self.random_blocks:
            raise UserError("random_blocks need the whole sequence; use random_blocks=0 with causal=True")
        if list(self.global_steps) != list(range(len(self.global_steps))):
            raise UserError(
                f"global_steps of a causal attention must be the first ones (0, 1, ..), got {self.global_steps}"
            )

    def blocks(self, count: int, causal: bool) -> list[list[int]]:
        """Return the key blocks of each of `count` query blocks, equally many for all.

        Indices below 0, and those of `count` and above, stand for blocks that do not exist.
        """
        reach = -(-self.window // self.block)
        near = [list(range(n - reach, n + 1 + reach * (not causal))) for n in range(count)]
        if not self.random_blocks:
            return near
        draw = random.Random(self.seed)
        return [blocks + self._draw_blocks(draw, set(range(count)) - set(blocks)) for blocks in near]

    def _draw_blocks(self, draw: random.Random, others: set[int]) -> list[int]:
        blocks = draw.sample(sorted(others), min(self.random_blocks, len(others)))
        return blocks + [-1] * (self.random_blocks - len(blocks))

    def mask(self, steps: int, causal: bool = False) -> Tensor:
        """Return the pairs as a matrix (T, T), True where query i may attend to key j."""
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
