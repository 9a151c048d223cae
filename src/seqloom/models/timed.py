"""A layer that knows time, in a place where layers are given features alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from seqloom.layers.recurrent.layer import Recurrent


class Timed(nn.Module):
    """The last feature is the time since the step before; the layer gets it as its `timespans`."""

    batch_first = True

    def __init__(self, layer: Recurrent) -> None:
        super().__init__()
        self.layer = layer
        self.input_size, self.output_size = layer.input_size + 1, layer.output_size
        self.bidirectional = layer.bidirectional

    def forward(
        self, x: Tensor, state: Any = None, lengths: Tensor | Sequence[int] | None = None
    ) -> tuple[Tensor, Any]:
        """(B, T, D + 1) -> (B, T, output_size), state."""
        return self.layer(x[..., :-1], state, lengths, timespans=x[..., -1])
