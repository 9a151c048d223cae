"""ListOps: compute the value of nested operations on digits."""

from __future__ import annotations

import random as python_random
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import FIRST_SYMBOL, Examples, Problem, Synthetic, check_at_least
from seqloom.lab.data.task import PAD, Classes, Tokens

OPERATIONS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
WORDS = (*(str(digit) for digit in range(10)), *OPERATIONS, "]")
NESTED_SHARE = 0.25  # share of arguments that are lists
MAX_TRIES = 100_000  # lists drawn before the search for one of the right length ends


def listops(
    steps: int = 100, shortest: int = 10, depth: int = 10, arguments: int = 5, valid: int = 1_000, test: int = 10_000
) -> Synthetic:
    """Make ListOps: [MAX 2 9 [MIN 4 7 ] 0 ] -> 9, with minimum, maximum, median (rounded down) and sum modulo 10.

    Nangia and Bowman 2018, arXiv 1804.06028.

    Args:
        steps: Symbols of the longest example.
        shortest: Symbols of the shortest example.
        depth: Greatest depth of nested lists.
        arguments: Maximum number of arguments of a list; the minimum is two.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("arguments", arguments, 2)
    check_at_least("depth", depth, 1)
    check_at_least("shortest", shortest, 4)
    check_at_least("steps", steps, shortest)
    if depth == 1 and shortest > arguments + 2:
        raise UserError(f"one list of {arguments} arguments cannot have {shortest} symbols; raise depth or arguments")

    def make(random: torch.Generator, n: int) -> Examples:
        seed = int(torch.randint(1 << 62, (1,), generator=random))
        own = python_random.Random(seed)
        lists = [_draw_sized_list(own, shortest, steps, depth, arguments) for _ in range(n)]
        rows = [torch.tensor([FIRST_SYMBOL + WORDS.index(word) for word in words]) for words, _ in lists]
        x = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        lengths = torch.tensor([len(row) for row in rows])
        return Examples(x, torch.tensor([value for _, value in lists]), lengths)

    options = {"steps": steps, "shortest": shortest, "depth": depth, "arguments": arguments}
    spaces = Tokens(FIRST_SYMBOL + len(WORDS), "tokens"), Classes(tuple(WORDS[:10]))
    return Synthetic(
        Problem("listops", *spaces, make, steps, options, "guessing has an accuracy of about 0.1 to 0.2"),
        valid,
        test,
    )


def _draw_sized_list(
    own: python_random.Random, shortest: int, longest: int, depth: int, arguments: int
) -> tuple[list[str], int]:
    for _ in range(MAX_TRIES):
        words, value = _draw_list(own, depth, arguments)
        if shortest <= len(words) <= longest:
            return words, value
    raise UserError(f"lists of {shortest} to {longest} symbols are too rare; raise arguments or lower shortest")


def _draw_list(own: python_random.Random, depth: int, arguments: int) -> tuple[list[str], int]:
    operation = own.choice(tuple(OPERATIONS))
    words, values = [operation], []
    for _ in range(own.randint(2, arguments)):
        if depth > 1 and own.random() < NESTED_SHARE:
            inner, value = _draw_list(own, depth - 1, arguments)
        else:
            value = own.randrange(10)
            inner = [str(value)]
        words += inner
        values.append(value)
    return [*words, "]"], OPERATIONS[operation](values)
