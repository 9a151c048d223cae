"""A readout after each step of a stream; it keeps what it needs from earlier steps.

last        nothing
mean        sum_t y_t and t
max         max_t y_t
attention   sum_t e_t y_t and sum_t e_t,  e_t = exp(v . tanh(W y_t + b) - |v|_1)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from seqloom.layers.readout import Readout

STATES = {"last": 0, "max": 1, "mean": 2, "max_mean": 3, "attention": 2}  # number of tensors that are kept


class RunningReadout:
    """Summarise the steps of streams so far.

    Args:
        readout: The readout of the model; None if its head reads every step.
    """

    def __init__(self, readout: Readout | None) -> None:
        self._readout: Any = readout
        self.name = "last" if readout is None else readout.name
        self.states = STATES[self.name]

    def read_steps(self, y: Tensor, lengths: Tensor, before: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Summarise steps.

        Args:
            y: (B, T, H) outputs of the layer.
            lengths: (B,) real steps of each row, at least one.
            before: The result of the last call for these rows; None at the start.

        Returns:
            The summary up to each step, (B, T, output_size), and what the next call needs, each (B, ...).
        """
        if self.name == "last":
            return y, []
        name, parts, after = self.name, [], []
        last = (lengths - 1).clamp(min=0)
        rows = torch.arange(len(y), device=y.device)
        old = iter(before or ())
        if name in ("max", "max_mean"):
            high = y.cummax(1).values
            high = torch.maximum(high, next(old).unsqueeze(1)) if before else high
            parts.append(high)
            after.append(high[rows, last])
        if name in ("mean", "max_mean"):
            total = y.double().cumsum(1)
            n = torch.arange(1.0, y.shape[1] + 1, device=y.device, dtype=torch.float64).view(1, -1, 1)
            n = n.expand(len(y), -1, 1)
            if before:
                total, n = total + next(old).unsqueeze(1), n + next(old).unsqueeze(1)
            parts.append((total / n).to(y))
            after += [total[rows, last], n[rows, last]]
        if name == "attention":
            score = self._readout.query(torch.tanh(self._readout.key(y))).double()
            e = torch.exp(score - self._readout.query.weight.abs().sum())
            top, bottom = (e * y).cumsum(1), e.cumsum(1)
            if before:
                top, bottom = top + next(old).unsqueeze(1), bottom + next(old).unsqueeze(1)
            parts.append((top / bottom).to(y))
            after += [top[rows, last], bottom[rows, last]]
        return torch.cat(parts, -1), after

    def read_step(self, y: Tensor, before: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
        """Do what `read_steps` does for one step y (B, H), with fewer operations."""
        name = self.name
        if name == "last":
            return y, []
        if name == "attention" or before is None:
            summary, after = self.read_steps(
                y.unsqueeze(1), torch.ones(len(y), dtype=torch.long, device=y.device), before
            )
            return summary.squeeze(1), after
        parts, after, old = [], [], iter(before)
        if name != "mean":
            parts.append(torch.maximum(y, next(old)))
            after.append(parts[0])
        if name != "max":
            total, n = next(old) + y, next(old) + 1
            parts.append((total / n).to(y))
            after += [total, n]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1), after
