"""Recurrent layers for comparisons: equal in size, each in its natural precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from research.studies.support.variants import find_kind, find_variant
from seqloom.cells.attn_rnn import AttnRNNCell
from seqloom.core.cell import Cell
from seqloom.core.init import Init
from seqloom.layers.recurrent.layer import Recurrent

UNGATED = ("default", "orthogonal", "xavier", "he")  # starts for a cell without a keep gate
FUSED = 16  # the fused GPU kernel of AttnRNN needs multiples of this
CUDNN = 64  # cuDNN runs h = 64 and 128 as one kernel; h = 144 was 4 times as slow
OF_CUDNN = ("rnn", "lstm", "gru")
MULTIPLE = 4  # for all other models
RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # learning rates instead of starts, for models without starts


def layer(
    cell: str | type[Cell],
    inputs: int,
    hidden: int,
    start: str,
    span: int,
    **settings: Any,  # forwarded to Recurrent
) -> Recurrent:
    """Build a layer with the given initialisation.

    "default", "orthogonal", "xavier", "he": as `Init.weights`; "chrono": gate biases for memories of up to
    `span` steps; "keep 3": the keep gate starts at sigmoid(3). `cell` may be the name of a variant (`VARIANTS`).
    """
    variant = find_variant(cell)
    cell, settings = variant.cell, variant.settings | settings
    if start.startswith("keep "):
        recurrent = Recurrent(cell, inputs, hidden, batch_first=True, **settings)
        recurrent.cell_at(0).remember(torch.full((hidden,), float(start.removeprefix("keep "))))
        return recurrent
    init = Init(chrono=max(3, span)) if start == "chrono" else Init(weights=start)  # type: ignore[arg-type]
    return Recurrent(cell, inputs, hidden, batch_first=True, init=init, **settings)


def starts(cell: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return these starts, or the same number of others for a cell without gates, so that tuning costs the same."""
    gated = find_kind(cell).remember is not Cell.remember
    return tuple(wanted) if gated else UNGATED[: len(wanted)]


def rates(lrs: Sequence[float], wanted: Sequence[str]) -> tuple[float, ...]:
    """Return as many learning rates for a model without starts as a cell has pairs of rate and start."""
    return tuple(lrs) if len(wanted) == 1 else RATES[: len(lrs) * len(wanted)]


def multiple(cell: str, device: str) -> int:
    """Return the number that hidden sizes must be a multiple of."""
    if device != "cuda":
        return math.lcm(MULTIPLE, find_variant(cell).settings.get("heads", 1))
    return FUSED if issubclass(find_kind(cell), AttnRNNCell) else CUDNN if cell in OF_CUDNN else MULTIPLE


def find_hidden_size(build: Callable[[int], nn.Module], budget: int, multiple: int) -> int:
    """Return the multiple at which the number of trained parameters is closest to the budget."""

    def count(k: int) -> int:
        return count_trained(build(k * multiple))

    low, high = 1, 2
    while count(high) < budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < budget else (low, middle)
    return multiple * min(low, high, key=lambda k: abs(count(k) - budget))


def count_trained(model: nn.Module) -> int:
    """Return the number of trained parameters, without frozen ones."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def natural(model: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which AttnRNN uses bfloat16 on a GPU, as its fused kernel does; others keep their type."""
    fused = any(isinstance(part, AttnRNNCell) and part.slots == 1 for part in model.modules())
    return torch.autocast(device.type, torch.bfloat16, enabled=fused and device.type == "cuda")


class Reader(nn.Module):
    """A layer and a linear head in float32, with an output after the last step or after every step.

    The input is features (B, T, D), or ids (B, T) that are read as one-hot rows; `symbols` is (first id, count).
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
        if not self.every:  # the last state is exact, while outputs may be rounded to bfloat16
            states = (last,) if isinstance(last, Tensor) else last
            ways = range(-1 - self.layer.bidirectional, 0)
            y = torch.cat([self.layer.cell_at(i).output(tuple(s[i] for s in states)) for i in ways], -1)
        return self.head(y.to(self.head.weight.dtype))
