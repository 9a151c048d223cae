"""Pattern detection: which symbol stands five times in a row, somewhere among random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST, Examples, Problem, Synthetic, at_least, symbols
from seqloom.lab.data.task import Classes, Tokens


def pattern(
    steps: int = 128,
    kinds: int = 8,
    run: int = 5,
    noise: float = 0.0,
    unique: bool = True,
    onehot: bool = False,
    valid: int = 1_000,
    test: int = 10_000,
) -> Synthetic:
    """A run of `run` equal symbols of `kinds` among random ones; y is the symbol.

    `noise` is the share of steps outside the run that are changed to another symbol. They were
    random before, so this alone changes no odds. `unique` breaks up runs that came about by
    chance, which would make the answer ambiguous; False leaves them, as Li 2025 (AttnRNN) does.
    """
    at_least("kinds", kinds, 2)
    at_least("run", run, 2)
    at_least("steps", steps, run)
    if not 0 <= noise <= 1:
        raise UserError(f"noise must be between 0 and 1, got {noise}")

    def make(random: torch.Generator, n: int) -> Examples:
        x = symbols(random, (n, steps), kinds) - FIRST
        y = torch.randint(kinds, (n,), generator=random)
        start = torch.randint(steps - run + 1, (n, 1), generator=random)
        t = torch.arange(steps)
        inside = (t >= start) & (t < start + run)  # (n, steps)
        changed = torch.rand(n, steps, generator=random) < noise
        x = torch.where(changed, (x + torch.randint(1, kinds, (n, steps), generator=random)) % kinds, x)
        x = torch.where(inside, y.unsqueeze(1), x)
        while unique and len(found := _other_runs(x, y, run)):
            row, last = found.unbind(1)
            x[row, last] = (x[row, last] + torch.randint(1, kinds, (len(row),), generator=random)) % kinds
        return Examples(x + FIRST, y)

    options = {"steps": steps, "kinds": kinds, "run": run, "noise": noise, "unique": unique}
    spaces = Tokens(FIRST + kinds, "tokens"), Classes(tuple(str(i) for i in range(kinds)))
    trivial = f"chance has an accuracy of {1 / kinds:.3f}"
    return Synthetic(Problem("pattern", "classify", *spaces, make, steps, options, trivial), valid, test, onehot)


def _other_runs(x: Tensor, y: Tensor, run: int) -> Tensor:
    """(E, 2) row and last step of every run that is not of the row's own symbol."""
    windows = x.unfold(1, run, 1)  # (n, steps - run + 1, run)
    found = (windows == windows[..., :1]).all(-1) & (windows[..., 0] != y.unsqueeze(1))
    return found.nonzero() + torch.tensor([0, run - 1])
