"""ListOps: the value of a nested list of operations on digits."""

from __future__ import annotations

import random as python_random
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST, Examples, Problem, Synthetic, at_least
from seqloom.lab.data.task import PAD, Classes, Tokens

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
WORDS = (*(str(digit) for digit in range(10)), *OPERATIONS, "]")
NESTED = 0.25  # how often an argument is a list itself
TRIES = 100_000


def listops(
    steps: int = 100, shortest: int = 10, depth: int = 10, arguments: int = 5, valid: int = 1_000, test: int = 10_000
) -> Synthetic:
    """[MAX 2 9 [MIN 4 7 ] 0 ] -> 9: minimum, maximum, median (rounded down), sum modulo 10.

    An example has between `shortest` and `steps` symbols, lists at most `depth` deep, each of two
    to `arguments` arguments. Nangia and Bowman 2018, arXiv 1804.06028.
    """
    at_least("arguments", arguments, 2)
    at_least("depth", depth, 1)
    at_least("shortest", shortest, 4)
    at_least("steps", steps, shortest)
    if depth == 1 and shortest > arguments + 2:
        raise UserError(f"one list of {arguments} arguments cannot have {shortest} symbols; raise depth or arguments")

    def make(random: torch.Generator, n: int) -> Examples:
        seed = int(torch.randint(1 << 62, (1,), generator=random))
        own = python_random.Random(seed)
        made = [_sized(own, shortest, steps, depth, arguments) for _ in range(n)]
        rows = [torch.tensor([FIRST + WORDS.index(word) for word in words]) for words, _ in made]
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(row) for row in rows])
        return Examples(x, torch.tensor([value for _, value in made]), lengths)

    options = {"steps": steps, "shortest": shortest, "depth": depth, "arguments": arguments}
    spaces = Tokens(FIRST + len(WORDS), "tokens"), Classes(tuple(WORDS[:10]))
    return Synthetic(
        Problem("listops", "classify", *spaces, make, steps, options, "chance: about 0.1-0.2"), valid, test
    )


def _sized(own: python_random.Random, shortest: int, longest: int, depth: int, arguments: int) -> tuple[list[str], int]:
    for _ in range(TRIES):
        words, value = _list(own, depth, arguments)
        if shortest <= len(words) <= longest:
            return words, value
    raise UserError(f"lists of {shortest} to {longest} symbols hardly come about; raise arguments or lower shortest")


def _list(own: python_random.Random, depth: int, arguments: int) -> tuple[list[str], int]:
    operation = own.choice(tuple(OPERATIONS))
    words, values = [operation], []
    for _ in range(own.randint(2, arguments)):
        if depth > 1 and own.random() < NESTED:
            inner, value = _list(own, depth - 1, arguments)
        else:
            value = own.randrange(10)
            inner = [str(value)]
        words += inner
        values.append(value)
    return [*words, "]"], OPERATIONS[operation](values)
