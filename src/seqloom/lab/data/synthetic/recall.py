"""First-token recall: what was the first symbol of a long sequence?"""

from __future__ import annotations

import torch

from seqloom.lab.data.synthetic.task import FIRST, Examples, Problem, Synthetic, at_least, symbols
from seqloom.lab.data.task import Classes, Tokens


def recall(steps: int = 100, kinds: int = 8, onehot: bool = False, valid: int = 1_000, test: int = 10_000) -> Synthetic:
    """Random symbols of `kinds`; y is the first of them."""
    at_least("kinds", kinds, 2)
    at_least("steps", steps, 1)

    def make(random: torch.Generator, n: int) -> Examples:
        x = symbols(random, (n, steps), kinds)
        return Examples(x, x[:, 0] - FIRST)

    options = {"steps": steps, "kinds": kinds}
    spaces = Tokens(FIRST + kinds, "tokens"), Classes(tuple(str(i) for i in range(kinds)))
    trivial = f"chance has an accuracy of {1 / kinds:.3f}"
    return Synthetic(Problem("recall", "classify", *spaces, make, steps, options, trivial), valid, test, onehot)
