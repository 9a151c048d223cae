"""Prepared calls that serve every shape up to their own, for layers whose inputs have other rows and steps each time.

Preparing a call and recording its passes takes longer than a short call itself. A call of a new shape is padded to the
next larger covering shape, of which there are few; lengths exclude the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.memory import new_empty
from seqloom.kernels import heuristics


def round_up(n: int) -> int:
    """Round a number of rows or steps up to that of a covering shape, which is at most 15 or a quarter more."""
    step = max(heuristics.COVERING_STEP, (1 << (n - 1).bit_length()) // 8)
    return -(-n // step) * step


def find_covering_shape(shape: torch.Size) -> torch.Size | None:
    """Return the shape to which an input (T, B, D) or (B, T, D) is padded; None if it must not be padded."""
    if len(shape) != 3 or max(shape[:2]) > heuristics.COVERING_MOST:
        return None
    if torch.are_deterministic_algorithms_enabled():  # products of other sizes may round differently
        return None
    return torch.Size((round_up(shape[0]), round_up(shape[1]), shape[2]))


class CoveredPlan:
    """Run calls of one shape by a plan for a covering shape.

    Args:
        plan: The other plan, which takes lengths.
        shape: Of the input.
        batch_first: Whether its rows come before its steps.
    """

    def __init__(self, plan: Any, shape: torch.Size, batch_first: bool) -> None:  # noqa: ANN401  # a plan
        self.plan, self.backend = plan, plan.backend
        self.T, self.B = shape[batch_first], shape[not batch_first]
        self.rows, self.steps = plan.B - self.B, plan.T - self.T  # more than the input has
        more = (self.steps, self.rows) if batch_first else (self.rows, self.steps)
        self.x_padding = (0, 0, 0, more[0], 0, more[1])
        self.batch_first = batch_first
        self.h_shapes = [torch.Size((s[0], self.B, *s[2:])) for s in plan.h_shapes]

    def run(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        weights: Sequence[Tensor],
        train: bool,
        lengths: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Run the other plan; the arguments and results are those of `PreparedStack.run`."""
        if lengths is None:
            lengths = new_empty(x, self.plan.B, dtype=torch.int64).fill_(self.T)
            if self.rows:
                lengths[self.B :].zero_()
        elif self.rows:
            lengths = F.pad(lengths, (0, self.rows))
        if self.rows:
            states = [F.pad(s, (0, 0, 0, self.rows)) for s in states]
        y, last = self.plan.run(F.pad(x, self.x_padding), states, weights, train, lengths)
        y = y[: self.B, : self.T] if self.batch_first else y[: self.T, : self.B]
        if self.rows:
            last = self._cut(last) if isinstance(last, Tensor) else tuple(map(self._cut, last))
        return y.contiguous(), last

    def _cut(self, state: Tensor) -> Tensor:
        return state[:, : self.B].contiguous()
