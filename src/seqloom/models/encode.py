"""The encoder of a translation model."""

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
    """The encoded sources that a decoder attends to."""

    values: Tensor  # (B, S, E): the output at every step
    lengths: Tensor | None  # (B,): real steps
    summary: Tensor  # (B, E): of the whole source


class Encoder(nn.Module):
    """An embedding and a layer, which may be bidirectional.

    The summary of a source is the last output of a recurrent layer in each direction, or the mean of other layers.

    Args:
        embed: Embedding of the source tokens.
        layer: A layer with batch_first=True.
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
        """Encode source ids (B, S) with lengths (B,)."""
        if source.dim() != 2 or source.shape[1] == 0:
            raise InputError(f"source must be (B, S) with at least one token for each row, got {tuple(source.shape)}")
        if lengths is not None:
            lengths = read_lengths(lengths, source.shape[0], source.shape[1], source.device)
            if can_check(lengths) and bool((lengths < 1).any()):
                row = int(torch.nonzero(lengths < 1)[0])
                raise InputError(f"source row {row} is empty, so there is nothing to attend to; leave it out")
        values, _ = self.layer(self.embed(source), lengths=lengths)
        return Memory(values, lengths, self.readout(values, lengths))
