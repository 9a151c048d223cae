"""Recurrent layers as studies set them side by side: alike in size, each in its natural precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.cells.attn_rnn import AttnRNNCell
from seqloom.cells.lookup import find_cell
from seqloom.core.cell import Cell
from seqloom.core.init import Init
from seqloom.layers.recurrent.layer import Recurrent

UNGATED = ("default", "orthogonal", "xavier", "he")  # starts for a cell without a gate that keeps
FUSED = 16  # AttnRNN's fused kernel for GPUs takes hidden sizes in such steps
CUDNN = 64  # h = 64 and 128 are one kernel for all of time there; at h = 144 a step was several, and 4 times as slow
OF_CUDNN = ("rnn", "lstm", "gru")
MULTIPLE = 4  # all other sizes
RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # learning rates in place of starts, for models that have none


def layer(cell: str | type[Cell], inputs: int, hidden: int, start: str, span: int, **settings: Any) -> Recurrent:
    """One layer whose weights start as `start` says.

    "default", "orthogonal", "xavier", "he": as `Init.weights`; "chrono": gate biases for memories of up to
    `span` steps; "keep 3": the gate that keeps starts at sigmoid(3).
    """
    if start.startswith("keep "):
        made = Recurrent(cell, inputs, hidden, batch_first=True, **settings)
        made.cell_at(0).remember(torch.full((hidden,), float(start.removeprefix("keep "))))
        return made
    init = Init(chrono=max(3, span)) if start == "chrono" else Init(weights=start)  # type: ignore[arg-type]
    return Recurrent(cell, inputs, hidden, batch_first=True, init=init, **settings)


def starts(cell: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """These starts, or as many others for a cell that has no gate to set: tuning costs the same."""
    gated = find_cell(cell).remember is not Cell.remember
    return tuple(wanted) if gated else UNGATED[: len(wanted)]


def rates(lrs: Sequence[float], wanted: Sequence[str]) -> tuple[float, ...]:
    """Learning rates for a model without starts: as many as a cell has settings of both."""
    return tuple(lrs) if len(wanted) == 1 else RATES[: len(lrs) * len(wanted)]


def multiple(cell: str, device: str) -> int:
    """Of which the hidden size is one."""
    if device != "cuda":
        return MULTIPLE
    return FUSED if issubclass(find_cell(cell), AttnRNNCell) else CUDNN if cell in OF_CUDNN else MULTIPLE


def hidden_size(build: Callable[[int], nn.Module], budget: int, multiple: int) -> int:
    """The multiple at which a model has the number of trained parameters that is nearest to the budget."""

    def count(k: int) -> int:
        return trained(build(k * multiple))

    low, high = 1, 2
    while count(high) < budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < budget else (low, middle)
    return multiple * min(low, high, key=lambda k: abs(count(k) - budget))


def trained(model: nn.Module) -> int:
    """How many numbers are learned; what is frozen is not."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def natural(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """AttnRNN computes in bfloat16 on a GPU, where its fused kernel does; all else as its weights are."""
    fused = any(isinstance(part, AttnRNNCell) and part.slots == 1 for part in model.modules())
    return torch.autocast(device.type, torch.bfloat16, enabled=fused and device.type == "cuda")


class Reader(nn.Module):
    """A layer and a linear head in float32: an answer after the last step, or after every step.

    The input is features (B, T, D), or ids (B, T) of `symbols`, (the first, how many), read as one-hot rows.
    """

    symbols: Tensor | None

    def __init__(
        self, layer: Recurrent, outputs: int, every: bool = False, symbols: tuple[int, int] | None = None
    ) -> None:
        super().__init__()
        self.layer, self.every = layer, every
        self.head = nn.Linear(layer.output_size, outputs)
        ids = None if symbols is None else torch.arange(symbols[0], symbols[0] + symbols[1])
        self.register_buffer("symbols", ids, persistent=False)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        if self.symbols is not None:
            x = (x.unsqueeze(-1) == self.symbols).to(self.head.weight.dtype)
        with natural(self.layer, x.device):
            y, last = self.layer(x, lengths=lengths)
        if not self.every:  # the last state is exact where outputs are rounded to bfloat16
            states = (last,) if isinstance(last, Tensor) else last
            ways = range(-1 - self.layer.bidirectional, 0)
            y = torch.cat([self.layer.cell_at(i).output(tuple(s[i] for s in states)) for i in ways], -1)
        return self.head(y.to(self.head.weight.dtype))
