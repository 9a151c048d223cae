"""Copy memory: symbols that must be said again after a while."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST, Examples, Problem, Synthetic, at_least, symbols
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
    """Say `count` symbols of `kinds` again, each at its own step at the end.

    "delay"      symbols, steps - 1 blanks, a sign, `count` blanks: steps + 20 in all with 10 symbols.
                 The loss is over all steps, blanks too; a metric counts the symbols alone.
    "selective"  the symbols stand in order at random places among the first `steps`, the rest is
                 blank; then the sign and `count` blanks.
    "third"      steps / 3 symbols of kinds - 1, a sign, then the last symbol as a filler, although
                 it is data too; the answer is the last third. Only it is asked for.

    Hochreiter and Schmidhuber 1997; Arjovsky, Shah and Bengio 2016, arXiv 1511.06464; selective:
    Jing et al. 2017, arXiv 1706.02761; third: Li 2025, AttnRNN.
    """
    at_least("steps", steps, 3)
    at_least("count", count, 1)
    at_least("kinds", kinds, 2)
    if form not in FORMS:
        raise UserError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "selective" and count > steps:
        raise UserError(f"{count} symbols do not fit into {steps} steps; lower count or raise steps")
    blank, sign = FIRST + kinds, FIRST + kinds + 1

    def delay(random: torch.Generator, n: int) -> Examples:
        data = symbols(random, (n, count), kinds)
        x = torch.full((n, steps + 2 * count), blank)
        x[:, :count] = data
        x[:, count + steps - 1] = sign
        return Examples(x, _answer(data, x, 0))

    def selective(random: torch.Generator, n: int) -> Examples:
        data = symbols(random, (n, count), kinds)
        places = torch.rand(n, steps, generator=random).argsort(1)[:, :count].sort(1).values
        x = torch.full((n, steps + 1 + count), blank).scatter_(1, places, data)
        x[:, steps] = sign
        return Examples(x, _answer(data, x, 0))

    def third(random: torch.Generator, n: int) -> Examples:
        data = symbols(random, (n, steps // 3), kinds - 1) + 1  # id FIRST is the sign
        x = torch.full((n, steps), FIRST + kinds - 1)
        x[:, : steps // 3] = data
        x[:, steps // 3] = FIRST
        y = torch.full_like(x, IGNORE)
        y[:, -(steps // 3) :] = data - FIRST
        return Examples(x, y)

    options = {"steps": steps, "form": form, "count": count, "kinds": kinds}
    named = tuple(str(i) for i in range(1, kinds + 1))
    if form == "third":
        target = Tags(("sign", *named[:-1]))
        problem = Problem("copy", "tag", Tokens(FIRST + kinds, "tokens"), target, third, steps, options, _third(kinds))
    else:
        make, length = (delay, steps + 2 * count) if form == "delay" else (selective, steps + 1 + count)
        told = f"blanks, then chance: accuracy {1 / kinds:.3f}, loss {count * math.log(kinds) / length:.4f}"
        target = Tags(("blank", *named), unscored=("blank",))
        problem = Problem("copy", "tag", Tokens(FIRST + kinds + 2, "tokens"), target, make, length, options, told)
    return Synthetic(problem, valid, test, onehot)


def _answer(data: Tensor, x: Tensor, blank: int) -> Tensor:
    y = torch.full_like(x, blank)
    y[:, -data.shape[1] :] = data - FIRST + 1
    return y


def _third(kinds: int) -> str:
    return f"chance has an accuracy of {1 / (kinds - 1):.3f}"
