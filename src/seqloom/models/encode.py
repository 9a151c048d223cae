"""The first half of N to M: a source as what a decoder attends to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from seqloom.core.checks import read_lengths
from seqloom.core.errors import InputError, UserError
from seqloom.layers.readout import Readout
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.models.checks import can_check
from seqloom.models.embed import Embed


@dataclass(frozen=True)
class Memory:
    """What an encoder says of a batch of sources."""

    values: Tensor  # (B, S, E): of every step
    lengths: Tensor | None  # (B,): the real ones
    summary: Tensor  # (B, E): of the whole


class Encoder(nn.Module):
    """An embedding and any layer, bidirectional too.

    The summary is where a recurrent layer ends, in each direction; of other layers the mean.
    """

    def __init__(self, embed: Embed, layer: nn.Module) -> None:
        super().__init__()
        if not getattr(layer, "batch_first", True):
            raise UserError("Encoder takes a layer with batch_first=True")
        self.embed, self.layer = embed, layer
        self.output_size = cast(int, layer.output_size)
        how = "last" if isinstance(layer, Recurrent) else "mean"
        self.readout = Readout(how, self.output_size, bool(getattr(layer, "bidirectional", False)))

    def forward(self, source: Tensor, lengths: Tensor | Sequence[int] | None = None) -> Memory:
        """source (B, S), lengths (B,) -> Memory."""
        if source.dim() != 2 or source.shape[1] == 0:
            raise InputError(f"source must be (B, S) with at least one token for each row, got {tuple(source.shape)}")
        if lengths is not None:
            lengths = read_lengths(lengths, source.shape[0], source.shape[1], source.device)
            if can_check(lengths) and bool((lengths < 1).any()):
                row = int(torch.nonzero(lengths < 1)[0])
                raise InputError(f"source row {row} is empty; leave it out, there is nothing to attend to")
        values, _ = self.layer(self.embed(source), lengths=lengths)
        return Memory(values, lengths, self.readout(values, lengths))
