"""First-token recall: name the first symbol of a long sequence."""

from __future__ import annotations

import torch

from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Examples, Problem, Synthetic, check_at_least, draw_symbols
from seqloom.lab.data.task import Classes, Tokens


def recall(steps: int = 100, kinds: int = 8, onehot: bool = False, valid: int = 1_000, test: int = 10_000) -> Synthetic:
    """Make the recall problem: y is the first of a sequence of random symbols.

    Args:
        steps: Length of a sequence.
        kinds: Number of different symbols.
        onehot: Whether x is one-hot vectors instead of ids.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("kinds", kinds, 2)
    check_at_least("steps", steps, 1)

    def make(random: torch.Generator, n: int) -> Examples:
        x = draw_symbols(random, (n, steps), kinds)
        return Examples(x, x[:, 0] - FIRST_SYMBOL)

    options = {"steps": steps, "kinds": kinds}
    spaces = Tokens(FIRST_SYMBOL + kinds, "tokens"), Classes(tuple(str(i) for i in range(kinds)))
    trivial = f"guessing has an accuracy of {1 / kinds:.3f}"
    return Synthetic(Problem("recall", *spaces, make, steps, options, trivial), valid, test, onehot)
