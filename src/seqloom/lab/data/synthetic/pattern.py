"""Pattern detection: find the symbol that occurs five times in a row among random ones."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Examples, Problem, Synthetic, check_at_least, draw_symbols
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
    """Make the pattern problem: y is the symbol that occurs `run` times in a row among random symbols.

    Args:
        steps: Length of a sequence.
        kinds: Number of different symbols.
        run: Length of the run.
        noise: Share of steps outside the run that are changed to another symbol. These steps are random anyway, so
            noise does not change the difficulty.
        unique: Whether to break up random runs, which would make the answer ambiguous; False keeps them, as the
            AttnRNN article does.
        onehot: Whether x is one-hot vectors instead of ids.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("kinds", kinds, 2)
    check_at_least("run", run, 2)
    check_at_least("steps", steps, run)
    if not 0 <= noise <= 1:
        raise UserError(f"noise must be between 0 and 1, got {noise}")

    def make(random: torch.Generator, n: int) -> Examples:
        x = draw_symbols(random, (n, steps), kinds) - FIRST_SYMBOL
        y = torch.randint(kinds, (n,), generator=random)
        start = torch.randint(steps - run + 1, (n, 1), generator=random)
        t = torch.arange(steps)
        inside = (t >= start) & (t < start + run)  # (n, steps)
        changed = torch.rand(n, steps, generator=random) < noise
        x = torch.where(changed, (x + torch.randint(1, kinds, (n, steps), generator=random)) % kinds, x)
        x = torch.where(inside, y.unsqueeze(1), x)
        while unique and len(others := _find_other_runs(x, y, run)):
            row, last = others.unbind(1)
            x[row, last] = (x[row, last] + torch.randint(1, kinds, (len(row),), generator=random)) % kinds
        return Examples(x + FIRST_SYMBOL, y)

    options = {"steps": steps, "kinds": kinds, "run": run, "noise": noise, "unique": unique}
    spaces = Tokens(FIRST_SYMBOL + kinds, "tokens"), Classes(tuple(str(i) for i in range(kinds)))
    trivial = f"guessing has an accuracy of {1 / kinds:.3f}"
    return Synthetic(Problem("pattern", *spaces, make, steps, options, trivial), valid, test, onehot)


def _find_other_runs(x: Tensor, y: Tensor, run: int) -> Tensor:
    """Return (E, 2) row and last step of every run of another symbol than the row's y."""
    windows = x.unfold(1, run, 1)  # (n, steps - run + 1, run)
    is_other = (windows == windows[..., :1]).all(-1) & (windows[..., 0] != y.unsqueeze(1))
    return is_other.nonzero() + torch.tensor([0, run - 1])
