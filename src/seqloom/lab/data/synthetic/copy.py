"""Copy memory: repeat symbols after a delay."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Examples, Problem, Synthetic, check_at_least, draw_symbols
from seqloom.lab.data.task import IGNORE, Tags, Tokens

FORMS = ("delay", "third", "selective")


def copy(
    steps: int = 100,
    form: str = "delay",
    count: int = 10,
    kinds: int = 8,
    onehot: bool = False,
    valid: int = 1_000,
    test: int = 10_000,
) -> Synthetic:
    """Make the copy problem: repeat `count` symbols at the end of the sequence.

    "delay"      symbols, steps - 1 blanks, a sign, `count` blanks: steps + 20 in all with 10 symbols.
                 The loss covers all steps, blanks too; metrics cover only the symbols.
    "selective"  the symbols are in order at random positions among the first `steps`, the rest is
                 blank; then the sign and `count` blanks.
    "third"      steps / 3 symbols of kinds - 1, a sign, then the last symbol as a filler, although
                 it also occurs in the data; only the last third, the answer, has a target.

    Hochreiter and Schmidhuber 1997; Arjovsky, Shah and Bengio 2016, arXiv 1511.06464; selective:
    Jing et al. 2017, arXiv 1706.02761; third: the AttnRNN article.

    Args:
        steps: Length of the delay, of the part with symbols ("selective"), or of the sequence ("third").
        form: "delay", "selective" or "third".
        count: Number of symbols to repeat; steps / 3 for "third".
        kinds: Number of different symbols.
        onehot: Whether x is one-hot vectors instead of ids.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("steps", steps, 3)
    check_at_least("count", count, 1)
    check_at_least("kinds", kinds, 2)
    if form not in FORMS:
        raise UserError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "selective" and count > steps:
        raise UserError(f"{count} symbols do not fit into {steps} steps; lower count or raise steps")
    blank, sign = FIRST_SYMBOL + kinds, FIRST_SYMBOL + kinds + 1

    def delay(random: torch.Generator, n: int) -> Examples:
        data = draw_symbols(random, (n, count), kinds)
        x = torch.full((n, steps + 2 * count), blank)
        x[:, :count] = data
        x[:, count + steps - 1] = sign
        return Examples(x, _place_answer(data, x))

    def selective(random: torch.Generator, n: int) -> Examples:
        data = draw_symbols(random, (n, count), kinds)
        places = torch.rand(n, steps, generator=random).argsort(1)[:, :count].sort(1).values
        x = torch.full((n, steps + 1 + count), blank).scatter_(1, places, data)
        x[:, steps] = sign
        return Examples(x, _place_answer(data, x))

    def third(random: torch.Generator, n: int) -> Examples:
        data = draw_symbols(random, (n, steps // 3), kinds - 1) + 1  # id FIRST_SYMBOL is the sign
        x = torch.full((n, steps), FIRST_SYMBOL + kinds - 1)
        x[:, : steps // 3] = data
        x[:, steps // 3] = FIRST_SYMBOL
        y = torch.full_like(x, IGNORE)
        y[:, -(steps // 3) :] = data - FIRST_SYMBOL
        return Examples(x, y)

    options = {"steps": steps, "form": form, "count": count, "kinds": kinds}
    names = tuple(str(i) for i in range(1, kinds + 1))
    if form == "third":
        target = Tags(("sign", *names[:-1]))
        trivial = f"guessing has an accuracy of {1 / (kinds - 1):.3f}"
        problem = Problem("copy", Tokens(FIRST_SYMBOL + kinds, "tokens"), target, third, steps, options, trivial)
    else:
        make, length = (delay, steps + 2 * count) if form == "delay" else (selective, steps + 1 + count)
        loss = count * math.log(kinds) / length
        trivial = f"blanks, then guesses: accuracy {1 / kinds:.3f}, loss {loss:.4f}"
        target = Tags(("blank", *names), unscored=("blank",))
        problem = Problem("copy", Tokens(FIRST_SYMBOL + kinds + 2, "tokens"), target, make, length, options, trivial)
    return Synthetic(problem, valid, test, onehot)


def _place_answer(data: Tensor, x: Tensor) -> Tensor:
    """Return y with the symbols at the end and blanks (0) before."""
    y = torch.zeros_like(x)
    y[:, -data.shape[1] :] = data - FIRST_SYMBOL + 1
    return y
