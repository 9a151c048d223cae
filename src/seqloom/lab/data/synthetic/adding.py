"""The adding problem: add the two marked numbers of a sequence."""

from __future__ import annotations

import torch

from seqloom.core.errors import UserError
from seqloom.lab.data.synthetic.task import Examples, Problem, Synthetic, check_at_least
from seqloom.lab.data.task import Features, Values

MARKS = ("anywhere", "halves")


def adding(steps: int = 200, marks: str = "anywhere", valid: int = 1_000, test: int = 10_000) -> Synthetic:
    """Make the adding problem: x_t = (v_t, m_t), v_t uniform in [0, 1], m_t = 1 at two steps; y = sum of m_t v_t.

    Hochreiter and Schmidhuber 1997, Long short-term memory; Le, Jaitly and Hinton 2015, arXiv 1504.00941.

    Args:
        steps: Length of a sequence.
        marks: "anywhere", or "halves" for one mark in each half.
        valid: Number of validation examples.
        test: Number of test examples.
    """
    check_at_least("steps", steps, 2)
    if marks not in MARKS:
        raise UserError(f"marks must be one of {', '.join(MARKS)}, got {marks!r}")

    def make(random: torch.Generator, n: int) -> Examples:
        v = torch.rand(n, steps, generator=random)
        if marks == "halves":
            half = steps // 2
            first = torch.randint(half, (n, 1), generator=random)
            places = torch.cat([first, torch.randint(half, steps, (n, 1), generator=random)], 1)
        else:
            first = torch.randint(steps, (n, 1), generator=random)
            further = torch.randint(1, steps, (n, 1), generator=random)
            places = torch.cat([first, (first + further) % steps], 1)  # two different steps
        m = torch.zeros(n, steps).scatter_(1, places, 1.0)
        return Examples(torch.stack([v, m], -1), (m * v).sum(1, keepdim=True))

    options = {"steps": steps, "marks": marks}
    trivial = "always predicting 1 has a mean squared error of 0.1667 and a mean absolute error of 0.3333"
    spaces = Features(("value", "mark")), Values(("sum",))
    return Synthetic(Problem("adding", *spaces, make, steps, options, trivial), valid, test)
