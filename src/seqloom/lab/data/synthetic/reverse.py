"""Reverse: repeat a sequence backwards."""

from __future__ import annotations

import torch

from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Examples, Problem, Synthetic, check_at_least, draw_symbols
from seqloom.lab.data.task import END, PAD, Tokens


def reverse(steps: int = 20, shortest: int = 1, kinds: int = 8, valid: int = 1_000, test: int = 10_000) -> Synthetic:
    """Make the reverse problem: y is the sequence backwards, then END.

    Args:
        steps: Length of the longest sequence.
        shortest: Length of the shortest sequence.
        kinds: Number of different symbols.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("kinds", kinds, 2)
    check_at_least("shortest", shortest, 1)
    check_at_least("steps", steps, shortest)

    def make(random: torch.Generator, n: int) -> Examples:
        lengths = torch.randint(shortest, steps + 1, (n,), generator=random)
        t = torch.arange(steps)
        x = torch.where(t < lengths.unsqueeze(1), draw_symbols(random, (n, steps), kinds), PAD)
        back = (lengths.unsqueeze(1) - 1 - t).clamp(min=0)
        y = torch.where(t < lengths.unsqueeze(1), x.gather(1, back), PAD)
        y = torch.cat([y, torch.full((n, 1), PAD)], 1).scatter_(1, lengths.unsqueeze(1), END)
        longest = int(lengths.max())
        return Examples(x[:, :longest], y[:, : longest + 1], lengths, lengths + 1)

    options = {"steps": steps, "shortest": shortest, "kinds": kinds}
    space = Tokens(FIRST_SYMBOL + kinds, "tokens")
    return Synthetic(Problem("reverse", space, space, make, steps + 1, options), valid, test)
